"""Trace files are read event by event, completely or with an error."""

import gzip
import json
import subprocess
import sys

import pytest
from trace_events import BASE_NS, event, packed, profile_of

from clary.base.plain import to_plain
from clary.contract.deep_profiles import HostProfile
from clary.control.traces import trace_file
from clary.control.traces.analysis import analyse
from clary.control.traces.trace_file import TraceError, TraceFile


def file_of(tmp_path, data):
    path = tmp_path / "rank-0.trace.json.gz"
    path.write_bytes(data)
    return TraceFile(path)


@pytest.mark.parametrize("chunk", [1, 7, 100, 1 << 20])
def test_every_event_is_read_whatever_the_size_of_the_chunks(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(trace_file, "_CHUNK_BYTES", chunk)
    events = [event(f'a {index} \u00e4 "] }}', index, index + 1) for index in range(40)]
    file = file_of(tmp_path, packed(events))
    assert list(file.events()) == events
    assert file.base_us == BASE_NS / 1000
    assert list(file.events()) == events, "a second time"


def test_a_base_time_before_the_events_is_found_too(tmp_path):
    file = file_of(tmp_path, gzip.compress(b'{"baseTimeNanoseconds": 5000, "traceEvents": []}'))
    assert list(file.events()) == []
    assert file.base_us == 5.0


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"no gzip", "cannot be read"),
        (gzip.compress(b"{}"), "no traceEvents"),
        (gzip.compress(b'{"traceEvents": [{"a": 1}, {"b"'), "cut off"),
        (gzip.compress(b'{"traceEvents": [' + b"[" * 100_000), "cannot be read"),
        (packed([event("a", 0, 1)] * 500)[:-200], "cannot be read"),
    ],
    ids=["plain", "empty", "cut off", "nested", "cut off packed"],  # packed bytes contain the time
)
def test_an_invalid_trace_file_is_an_error_with_a_message(tmp_path, data, why):
    with pytest.raises(TraceError, match=why):
        list(file_of(tmp_path, data).events())


def test_a_missing_trace_file_is_an_error(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        list(TraceFile(tmp_path / "none.gz").events())


def test_a_short_file_of_gigabytes_of_names_costs_its_own_rank_and_not_the_machine(tmp_path):
    (tmp_path / "request.json").write_text(json.dumps({"hosts": ["algo-1"]}))
    answer = HostProfile(number=1, host="algo-1", is_final=True, ranks=(profile_of(0), profile_of(1)))
    (tmp_path / "algo-1.json").write_text(json.dumps(to_plain(answer)))
    (tmp_path / "rank-1.trace.json.gz").write_bytes(packed([event("aten::mm", 0, 5)]))
    with gzip.open(tmp_path / "rank-0.trace.json.gz", "wt", compresslevel=1) as file:
        file.write('{"traceEvents": [')
        for number in range(12_000):
            file.write(json.dumps(event(f"{number}" + "x" * 10_000, 0, 5)) + ",")
        file.write("{}]}")
    code = f"""
from pathlib import Path
from clary.control.traces.__main__ import limit_memory
from clary.control.traces.analysis import analyse
limit_memory(80 << 20)
limit_memory(8 << 30)  # a lower limit stays
analyse(Path({str(tmp_path)!r}))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    hostile, other = json.loads((tmp_path / "summary.json").read_text())["ranks"]
    assert (hostile["state"], other["state"]) == ("failed", "done")
    assert "more memory" in hostile["words"]


def test_ranks_that_were_asked_for_and_have_not_answered_are_named(tmp_path):
    asked = {"hosts": ["algo-1"], "asked": {"ranks": [0, 7, 9]}}
    (tmp_path / "request.json").write_text(json.dumps(asked))
    answer = HostProfile(number=1, host="algo-1", is_final=True, ranks=(profile_of(0),))
    (tmp_path / "algo-1.json").write_text(json.dumps(to_plain(answer)))
    why = "has not answered: the job has no such rank, or it has not imported torch 2.5 or newer"
    assert analyse(tmp_path)["errors"] == [f"rank 7 {why}", f"rank 9 {why}"]
    (tmp_path / "request.json").write_text(json.dumps({**asked, "hosts": ["algo-1", "algo-2"]}))
    assert analyse(tmp_path)["errors"] == ["algo-2 has not answered"]  # its ranks are unknown
