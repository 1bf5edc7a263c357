"""Files of traces, and cores that report to them."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from clary.train._native.interface import Kind, Operation
from clary.train.collective import trace
from clary.train.collective.trace import TraceWriter, main, merge, read_events
from clary.train.collective.traced_core import TracedCore


class FakeCore:
    """Operations that end when they are told to."""

    def __init__(self) -> None:
        self.ended: set[int] = set()
        self.last_ticket = 0

    def run(self, operation: Operation) -> int:
        has_ended = not operation.asynchronous
        self.last_ticket += not has_ended
        return 0 if has_ended else self.last_ticket

    def close(self) -> None:
        """Do nothing."""

    def is_done(self, ticket: int) -> bool:
        return ticket in self.ended

    def wait(self, ticket: int, limit_s: float | None) -> int | None:
        return 0 if ticket in self.ended else None


def _spans(path: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(path) if event["ph"] == "X"]


def test_a_file_is_chromes_format_and_names_rank_and_lanes(tmp_path: Path) -> None:
    path = tmp_path / "rank-3.1.json"
    writer = TraceWriter(path, 3)
    begin_ns = time.perf_counter_ns()
    writer.span(trace.COMPUTE, "forward", begin_ns, begin_ns + 2_000_000, layer=1)
    writer.instant("communication g", "asked", begin_ns)
    writer.close()
    writer.span(trace.COMPUTE, "late", begin_ns, begin_ns)
    events = json.loads(path.read_text())
    assert {event["pid"] for event in events} == {3}
    names = {event["args"]["name"] for event in events if event["name"] in ("process_name", "thread_name")}
    assert names == {"rank 3", "compute", "communication g"}
    (span,) = _spans(path)
    assert (span["dur"], span["args"]) == (2000.0, {"layer": 1})
    assert abs(span["ts"] / 1e6 - time.time()) < 5


def test_events_beyond_the_limit_are_counted_and_dropped(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.1.json"
    writer = TraceWriter(path, 0, max_events=10)
    for _ in range(25):
        writer.instant("a", "b", 0)
    writer.close()
    events = read_events(path)
    assert sum(event["ph"] == "i" for event in events) == 10
    assert events[-1]["args"] == {"labels": "15 events dropped"}


@pytest.mark.parametrize("lost_bytes", [0, 1, 5, 40])
def test_a_file_that_was_cut_off_opens_up_to_there(tmp_path: Path, lost_bytes: int) -> None:
    path = tmp_path / "rank-0.1.json"
    writer = TraceWriter(path, 0)
    for _ in range(5):
        writer.span("a", "b", 0, 1)
    writer.flush()
    text = path.read_text()
    writer.close()
    path.write_text(text[: len(text) - lost_bytes])
    assert 4 <= len(_spans(path)) <= 5


def test_files_of_a_run_are_merged_from_the_command_line(tmp_path: Path) -> None:
    for rank in (0, 1):
        TraceWriter(tmp_path / f"rank-{rank}.7.json", rank).close()
    assert main(["merge", str(tmp_path), str(tmp_path / "all.json")]) == 0
    assert {event["pid"] for event in json.loads((tmp_path / "all.json").read_text())["traceEvents"]} == {0, 1}


def test_an_empty_folder_and_a_file_that_is_no_trace_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["merge", str(tmp_path), str(tmp_path / "all.json")]) == 1
    assert trace.VARIABLE in capsys.readouterr().err
    (tmp_path / "rank-0.1.json").write_text("no")
    with pytest.raises(ValueError, match=r"rank-0\.1\.json is no trace"):
        merge(tmp_path)


def test_traces_are_off_without_a_folder(tmp_path: Path) -> None:
    assert trace.writer_of_process("", 0) is None


def test_operations_are_spans_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.1.json"
    writer, fake = TraceWriter(path, 0), FakeCore()
    core: Any = TracedCore(fake, writer, "g")  # type: ignore[arg-type]
    core.all_reduce(0, 0, 10, 0, 0, False, 0.0)
    first, second = (core.all_reduce(0, 0, count, 3, 0, True, 0.0) for count in (100, 200))
    assert core.wait(first, 0.0) is None
    time.sleep(0.05)
    fake.ended |= {first, second}
    deadline_s = time.monotonic() + 10
    while core._pending and time.monotonic() < deadline_s:
        time.sleep(0.001)  # it is seen to end although nobody waits for it
    core.close()
    writer.close()
    spans = _spans(path)
    assert [span["args"]["bytes"] for span in spans] == [40, 200, 400]
    assert spans[1]["dur"] >= 45_000
    assert spans[2]["ts"] >= spans[1]["ts"] + spans[1]["dur"] - 1
    assert spans[2]["args"]["waited_us"] >= 45_000
    assert not any(thread.name == "clary-trace-g" for thread in threading.enumerate())


def test_messages_may_overlap(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.1.json"
    writer, fake = TraceWriter(path, 0), FakeCore()
    core: Any = TracedCore(fake, writer, "g")  # type: ignore[arg-type]
    tickets = [core.run(Operation(Kind.SEND, count=count, asynchronous=True)) for count in (8, 9)]
    fake.ended |= set(tickets)
    assert [core.wait(ticket, None) for ticket in tickets] == [0, 0]
    core.close()
    writer.close()
    events = [event for event in read_events(path) if event["ph"] in "be"]
    assert [(event["ph"], event["id"]) for event in events if event["id"] == tickets[0]] == [("b", 1), ("e", 1)]
    assert len(events) == 4
