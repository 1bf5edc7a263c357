"""Limits of the output that enters the log, and the log's notices of dropped lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.log.log_intake import LogIntake
from clary.agent.log.log_limit import BURST_S, LogLimit
from clary.agent.log.log_spool import LogSpool
from clary.contract.launch_plan import AnsiCodes, LogRules
from clary.testing.fake_clock import FakeClock


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), max_size=30), st.integers(0, 5), st.integers(0, 60))
def test_every_line_is_admitted_in_order_or_counted_in_a_notice(batches, max_lines, max_bytes) -> None:
    limit = LogLimit(LogRules(max_lines_per_s=max_lines, max_bytes_per_s=max_bytes), now_s=0.0)
    now_s, number, told = 0.0, 0, 0
    admitted: list[str] = []
    for tenths, num_lines in batches:
        now_s += tenths / 10
        lines = [f"{count} \u00e4" for count in range(number, number + num_lines)]
        number += num_lines
        admitted += limit.admit(lines, now_s)
        sentence = limit.notice(now_s)
        told += int(sentence.split()[0]) if sentence else 0
    sentence = limit.notice(now_s, is_last=True)
    told += int(sentence.split()[0]) if sentence else 0
    numbers = [int(line.split()[0]) for line in admitted]
    assert numbers == sorted(set(numbers))
    assert len(numbers) + told == number
    assert told == limit.num_dropped
    if max_lines:
        assert len(numbers) <= max_lines * (BURST_S + now_s)
    if not max_lines and not max_bytes:
        assert told == 0


def test_a_read_with_more_lines_than_the_burst_is_cut_at_the_burst() -> None:
    limit = LogLimit(LogRules(max_lines_per_s=2), now_s=0.0)
    assert limit.admit([" "] * 1000, 0.0) == [" "] * 20
    assert limit.notice(0.0) == (
        "980 lines (980 bytes) were dropped here: more than 2 lines/s (setting log_max_lines_per_s)"
    )


@pytest.fixture
def spool(tmp_path: Path):
    spool = LogSpool(tmp_path / "spool")
    yield spool
    spool.close()


def texts(spool: LogSpool) -> list[str]:
    return [line for block in spool.read(0, max_lines=100_000, max_bytes=1 << 30) for line in block.lines()]


def test_the_log_reports_dropped_lines_once_a_second_and_at_the_end(spool: LogSpool) -> None:
    clock = FakeClock()
    intake = LogIntake(spool, clock=clock, rules=LogRules(max_lines_per_s=1))
    intake.open("process", rank=0)
    intake.on_output("process", b"".join(b"%d\n" % number for number in range(15)))
    intake.on_output("process", b"still\n")  # dropped; the interval of the first notice begins
    clock.advance(0.5)
    intake.on_output("process", b"more\n")
    intake.tick()
    clock.advance(1.0)
    intake.on_output("process", b"again\n")
    intake.on_output("process", b"last")
    intake.finish()
    bound = "more than 1 lines/s (setting log_max_lines_per_s)"
    assert texts(spool) == [
        *(str(number) for number in range(10)),
        f"clary: 5 lines (10 bytes) were dropped here: {bound}",
        f"clary: 2 lines (9 bytes) were dropped here: {bound}",
        "again",
        f"clary: 1 lines (4 bytes) were dropped here: {bound}",
    ]
    assert intake.num_dropped == 8
    assert intake.last_lines(0)[-1] == "last", "what is dropped still tells why a process failed"


def test_sentences_of_the_agent_always_pass(spool: LogSpool) -> None:
    intake = LogIntake(spool, clock=FakeClock(), rules=LogRules(max_lines_per_s=1))
    intake.say(*["word"] * 50)
    assert texts(spool) == ["clary: word"] * 50


def test_colours_are_kept_or_removed_by_the_setting(spool: LogSpool) -> None:
    for codes in (AnsiCodes.KEEP, AnsiCodes.STRIP):
        intake = LogIntake(spool, clock=FakeClock(), rules=LogRules(ansi=codes))
        intake.on_output("process", b"\x1b[31mred\x1b[0m\n")
    assert texts(spool) == ["\x1b[31mred\x1b[0m", "red"]


def test_a_gap_ends_the_line_that_it_cuts(spool: LogSpool) -> None:
    intake = LogIntake(spool, clock=FakeClock())
    intake.open("process", rank=0, prefix="<0> ")
    intake.on_output("process", b"whole\nbegun and ")
    intake.on_gap("process", "clary: 3 lines (99 bytes) were lost here: why")
    intake.on_output("process", b"rest of another\n")
    assert texts(spool) == [
        "<0> whole",
        "<0> begun and ",
        "clary: 3 lines (99 bytes) were lost here: why",
        "<0> rest of another",
    ]
