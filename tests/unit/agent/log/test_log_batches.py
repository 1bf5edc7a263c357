"""Batches that are encoded while others are sent: in order, and encoded again if the service asks for other lines."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from clary.agent.log import log_batches
from clary.agent.log.log_batches import LogBatches, ReadyBatch
from clary.agent.log.log_spool import LogSpool
from clary.agent.log.metrics import MetricFinder
from clary.base.errors import AgentError
from clary.base.plain import to_plain
from clary.contract.agent_protocol import LogBatch


class Encoder:
    """Encodes lines, and records the thread that encoded them."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.is_failing_ahead = False

    def __call__(self, batch: LogBatch) -> bytes:
        if self.is_failing_ahead and threading.current_thread() is not threading.main_thread():
            raise AgentError("cannot be encoded")
        self.threads.append(threading.current_thread().name)
        return json.dumps(to_plain(batch)).encode()


@pytest.fixture
def encoder() -> Encoder:
    return Encoder()


@pytest.fixture
def spool(tmp_path: Path) -> LogSpool:
    spool = LogSpool(tmp_path)
    spool.append([f"line {number}" for number in range(10)])
    return spool


@pytest.fixture
def batches(spool: LogSpool, encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(log_batches, "BATCH_LINES", 3)
    monkeypatch.setattr(log_batches, "FLOOD_BYTES", 1)
    batches = LogBatches(spool, MetricFinder((), on_note=pytest.fail), encode=encoder)
    yield batches
    batches.close()


def numbers(body: bytes) -> list[int]:
    lines = [line for block in json.loads(body)["blocks"] for line in block["text"].splitlines()]
    return [int(line.removeprefix("line ")) for line in lines]


def take(batches: LogBatches, first: int) -> ReadyBatch:
    """Acknowledge all lines before `first`; return the next batch."""
    batches.acknowledge(first)
    batch = batches.take()
    assert batch is not None
    return batch


def test_a_batch_stays_the_same_until_an_acknowledgement(batches: LogBatches, encoder: Encoder) -> None:
    first = take(batches, 0)
    assert batches.take() is first
    assert batches.first == 0
    assert take(batches, 0) is not first


def test_in_a_flood_the_next_batch_is_made_in_another_thread(batches: LogBatches, encoder: Encoder) -> None:
    first = take(batches, 0)
    second = take(batches, first.end_sequence)
    assert (numbers(first.body), numbers(second.body)) == ([0, 1, 2], [3, 4, 5])
    assert encoder.threads[0] == threading.current_thread().name
    assert encoder.threads[1].startswith("log-batches")


def test_a_batch_that_is_not_the_next_one_needed_is_encoded_again(batches: LogBatches) -> None:
    take(batches, 0)
    assert numbers(take(batches, 1).body) == [1, 2, 3]
    assert numbers(take(batches, 4).body) == [4, 5, 6]


def test_no_batch_is_made_ahead_after_the_last_lines(batches: LogBatches, encoder: Encoder) -> None:
    assert numbers(take(batches, 9).body) == [9]
    assert len(encoder.threads) == 1


def test_an_error_of_a_batch_made_ahead_is_raised_when_it_is_taken(batches: LogBatches, encoder: Encoder) -> None:
    encoder.is_failing_ahead = True
    first = take(batches, 0)
    with pytest.raises(AgentError, match="cannot be encoded"):
        take(batches, first.end_sequence)


def test_an_error_of_an_unused_batch_is_ignored(batches: LogBatches, encoder: Encoder) -> None:
    encoder.is_failing_ahead = True
    take(batches, 0)
    assert numbers(take(batches, 1).body) == [1, 2, 3]


def test_lines_follow_a_mark_if_the_service_has_lost_lines_that_are_gone_here(tmp_path: Path) -> None:
    spool = LogSpool(tmp_path / "other", segment_bytes=1)  # one file for each line
    for number in range(10):
        spool.append([f"line {number}"])
    batches = LogBatches(
        spool, MetricFinder((), on_note=pytest.fail), encode=lambda batch: json.dumps(to_plain(batch)).encode()
    )
    take(batches, 0)
    batches.acknowledge(8)
    for _ in range(2):  # it may lose them again
        batches.acknowledge(batches.in_spool(3))
        ready = batches.take()
        assert ready is not None
        sent = json.loads(ready.body)
        lines = [line for block in sent["blocks"] for line in block["text"].splitlines()]
        assert sent["first_sequence"] == 3
        assert lines[0].startswith("clary: 5 lines were lost here: the service had stored them")
        assert lines[1:] == ["line 8", "line 9"]
        assert (ready.first_sequence, ready.end_sequence) == (7, 10)
    batches.acknowledge(batches.in_spool(6))
    assert batches.take() is None
    spool.append(["line 10"])
    ready = batches.take()
    assert ready is not None
    assert json.loads(ready.body)["first_sequence"] == 6
    assert numbers(ready.body) == [10]
    batches.close()
    spool.close()


def test_there_is_no_batch_without_lines(batches: LogBatches) -> None:
    batches.acknowledge(10)
    assert batches.take() is None


def test_lines_missing_in_the_spool_are_an_error(batches: LogBatches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogSpool, "read", lambda *_arguments, **_bounds: [])
    with pytest.raises(AgentError, match="gives back none"):
        batches.take()
