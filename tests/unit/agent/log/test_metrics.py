from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from clary.agent.log import metrics
from clary.agent.log.metrics import MATCHED_CHARACTERS, MetricFinder
from clary.contract.agent_protocol import LogBlock
from clary.contract.launch_plan import MetricDefinition


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def finder_of(notes: list[str]):
    finders = []

    def build(**patterns: str) -> MetricFinder:
        definitions = [MetricDefinition(name=name, regex=regex) for name, regex in patterns.items()]
        finders.append(MetricFinder(definitions, on_note=notes.append))
        return finders[-1]

    yield build
    for finder in finders:
        finder.close()


def lines(*texts: str) -> list[LogBlock]:
    return [LogBlock(at_ms=1_700_000_000_000, text=text) for text in texts]


def values(found: list[LogBlock]) -> list[list[tuple[str, float]]]:
    return [[(metric.name, metric.value) for metric in line.metrics] for line in found]


def test_group_one_is_the_value(finder_of, notes: list[str]) -> None:
    finder = finder_of(loss=r"loss=([0-9.e-]+)", accuracy=r"acc: (\S+)")
    found = finder.find(lines("step 1 loss=0.25 acc: 0.9", "nothing", "loss=1e-3"))
    assert values(found) == [[("loss", 0.25), ("accuracy", 0.9)], [], [("loss", 0.001)]]
    assert found[0].metrics[0].at.timestamp() == 1_700_000_000
    assert notes == []


def test_values_that_are_not_finite_numbers_are_ignored(finder_of) -> None:
    finder = finder_of(loss=r"loss=(\S*)")
    assert values(finder.find(lines("loss=abc", "loss=nan", "loss=inf", "loss=", "loss=2"))) == [
        [],
        [],
        [],
        [],
        [("loss", 2.0)],
    ]


def test_bad_patterns_are_noted_and_the_others_still_work(finder_of, notes: list[str]) -> None:
    finder = finder_of(broken=r"loss=(", groupless=r"loss", fine=r"(\d+)")
    assert values(finder.find(lines("loss=5"))) == [[("fine", 5.0)]]
    assert [note.split(":")[0] for note in notes] == [
        "metric 'broken' is not looked for",
        "metric 'groupless' is not looked for",
    ]


def test_a_pattern_that_times_out_is_dropped_and_the_others_still_work(finder_of, notes: list[str]) -> None:
    finder = finder_of(endless=r"(a+)+$", fine=r"v=(\d+)")
    started_s = time.monotonic()
    found = finder.find(lines("a" * 60 + "! v=7", "a" * 60 + "! v=8"))
    assert time.monotonic() - started_s < 5.0
    assert values(found) == [[("fine", 7.0)], [("fine", 8.0)]]
    assert len(notes) == 1
    assert "'endless' is not looked for any more" in notes[0]
    assert values(finder.find(lines("a" * 60 + "! v=9"))) == [[("fine", 9.0)]]


def test_only_the_start_of_a_line_is_matched(finder_of) -> None:
    finder = finder_of(number=r"v=(\d+)")
    assert values(finder.find(lines(" " * MATCHED_CHARACTERS + "v=1"))) == [[]]


def test_text_of_every_kind_passes(finder_of) -> None:
    texts = ["\u00e4\u20ac\U0001f600 v=1", 'quote " v=2', "back\\slash\tv=3", "\x1b[31mv=4"]
    finder = finder_of(number=r"v=(\d+)")
    assert values(finder.find(lines(*texts))) == [[("number", float(n))] for n in (1, 2, 3, 4)]


def test_a_dead_matching_process_costs_metrics_but_no_line(finder_of, notes: list[str]) -> None:
    finder = finder_of(number=r"v=(\d+)")
    finder.find(lines("v=1"))
    os.kill(finder._process.pid, signal.SIGKILL)
    assert finder.find(lines("v=2")) == lines("v=2")
    assert len(notes) == 1
    assert finder.find(lines("v=3")) == lines("v=3")


def test_a_stopped_matching_process_costs_metrics_but_no_line_and_not_the_shipping(
    finder_of, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = finder_of(number=r"v=(\d+)")
    finder.find(lines("v=1"))
    os.kill(finder._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(metrics, "START_LIMIT_S", 0.2)
    many = lines(*("x" * MATCHED_CHARACTERS for _ in range(100)))  # more than a pipe holds
    began_s = time.monotonic()
    shipped = threading.Thread(target=finder.find, args=(many,), daemon=True)
    shipped.start()
    shipped.join(20)
    assert not shipped.is_alive()
    assert time.monotonic() - began_s < 15
    assert len(notes) == 1
    assert "matching process failed" in notes[0]
    assert finder.find(lines("v=3")) == lines("v=3")


def test_a_batch_longer_than_a_pipe_is_matched(finder_of) -> None:
    finder = finder_of(number=r"v=(\d+)")
    many = lines(*(f"v={number} {'x' * 4000}" for number in range(100)))
    assert values(finder.find(many)) == [[("number", float(number))] for number in range(100)]


def test_without_definitions_no_process_is_started(finder_of) -> None:
    finder = finder_of()
    assert finder.find(lines("v=1")) == lines("v=1")
    assert finder._process is None


def test_a_line_with_a_metric_leaves_its_block_and_keeps_its_place(finder_of) -> None:
    finder = finder_of(number=r"v=(\d+)", same=r"(\d+)!")
    block = LogBlock(at_ms=1_700_000_000_000, text="a\nb\nv=1 2!\nc\nv=3", rank=4)
    found = finder.find([*lines("v=0", "plain"), block, *lines("last")])
    assert [(item.text, item.rank, [metric.value for metric in item.metrics]) for item in found] == [
        ("v=0", None, [0.0]),
        ("plain", None, []),
        ("a\nb", 4, []),
        ("v=1 2!", 4, [1.0, 2.0]),
        ("c", 4, []),
        ("v=3", 4, [3.0]),
        ("last", None, []),
    ]
