"""Collectives of several ranks, the clocks of the ranks, and the merged trace."""

import gzip
import json
from dataclasses import replace
from itertools import pairwise

import pytest
from trace_events import event, packed, profile_of, trace_of

from clary.base.plain import to_plain
from clary.contract.deep_profiles import HostProfile, RankProfile, RankState
from clary.control.traces.across_ranks import BY_ENDS, NOT_ALIGNED, ONE_CLOCK, marks_of, set_clocks, skews
from clary.control.traces.analysis import analyse

BOUNDS = (0, 100, 200, 300)


def collectives(late_ms=0.0):
    """Return a rank's record of three steps with two collectives each; each collective starts `late_ms` late."""
    found = []
    for begin, _ in pairwise(BOUNDS):
        for at in (begin + 20, begin + 60):
            found += [
                event("c10d::allreduce_", at + late_ms, at + late_ms + 1),
                event("gloo:all_reduce", at + late_ms, at + 15, category="user_annotation", thread=9),
            ]
    return found


def marks(rank, *, late_ms=0.0, **members):
    return marks_of(trace_of(collectives(late_ms), rank=rank, bounds=BOUNDS, **members))


def test_ranks_of_one_machine_share_a_clock_and_the_late_rank_is_named():
    both = [marks(0), marks(1, late_ms=8)]
    clocks = set_clocks(both)
    assert (clocks.method, clocks.offsets, clocks.spread_us) == (ONE_CLOCK, {0: 0.0, 1: 0.0}, None)
    found = skews(both, clocks)
    assert found["num_collectives"] == 6
    assert found["last"] == {"0": 0, "1": 6}
    assert found["median_ms"] == pytest.approx(8)
    assert found["mean_behind_ms"] == {"0": 0.0, "1": pytest.approx(8)}
    assert [row["step"] for row in found["greatest"]] == [10, 10, 11, 11, 12, 12]


def test_clocks_of_machines_are_aligned_by_the_ends_of_collectives():
    both = [marks(0), marks(1, late_ms=8, boot_id="another", ahead_ms=5000.0)]
    clocks = set_clocks(both)
    assert clocks.method == BY_ENDS
    assert clocks.offsets[1] == pytest.approx(-5_000_000)
    assert clocks.spread_us == pytest.approx(0)
    assert skews(both, clocks)["median_ms"] == pytest.approx(8), "though its clock is five seconds ahead"


def test_machines_without_common_collectives_are_reported_as_not_aligned():
    other = marks_of(trace_of([], rank=1, bounds=BOUNDS, boot_id="another"))
    clocks = set_clocks([marks(0), other])
    assert (clocks.method, clocks.offsets) == (NOT_ALIGNED, {0: 0.0, 1: 0.0})
    unknown = set_clocks([marks(0, boot_id=""), marks(1, boot_id="")])
    assert unknown.method == BY_ENDS, "who says nothing of its machine shares a clock with nobody"


def test_steps_that_are_missing_on_a_rank_are_left_out():
    later = marks_of(trace_of(collectives(), rank=1, bounds=BOUNDS, first_step=11))
    found = skews([marks(0), later], set_clocks([marks(0), later]))
    assert found["num_collectives"] == 4
    assert skews([marks(0)], set_clocks([marks(0)]))["num_collectives"] == 0
    timed = [marks(0, by_time=True), marks(1, by_time=True)]
    assert skews(timed, set_clocks(timed))["median_ms"] is None


def write(folder, host, *profiles, error="", is_final=True):
    answer = HostProfile(number=1, host=host, is_final=is_final, ranks=profiles, error=error)
    (folder / f"{host}.json").write_text(json.dumps(to_plain(answer)))


def test_a_folder_becomes_a_summary_and_one_merged_trace(tmp_path):
    (tmp_path / "request.json").write_text(json.dumps({"hosts": ["algo-1", "algo-2", "algo-3", "algo-4"]}))
    first, second = profile_of(0, bounds=BOUNDS), profile_of(1, bounds=BOUNDS, boot_id="another", ahead_ms=70)
    lost = RankProfile(rank=2, state=RankState.LOST, words="rank 2 ended before its trace was whole")
    write(tmp_path, "algo-1", first)
    write(tmp_path, "algo-2", second, replace(profile_of(3), trace_bytes=7))
    write(tmp_path, "algo-3", lost, error="no rank of algo-3 has answered")
    arrow = {"ph": "s", "id": 4, "name": "fwdbwd", "pid": 500, "tid": 1, "ts": 1000, "cat": "fwdbwd"}
    gpu = event("ampere_sgemm", 1, 2, category="kernel", pid=0)
    (tmp_path / "rank-0.trace.json.gz").write_bytes(packed([*collectives(), arrow, gpu]))
    (tmp_path / "rank-1.trace.json.gz").write_bytes(packed(collectives(late_ms=8), ahead_ms=70))
    (tmp_path / "rank-3.trace.json.gz").write_bytes(b"broken")
    summary = analyse(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert [(rank["rank"], rank["state"]) for rank in summary["ranks"]] == [
        (0, "done"),
        (1, "done"),
        (2, "lost"),
        (3, "failed"),
    ]
    assert "cannot be read" in summary["ranks"][3]["words"]
    assert summary["errors"] == ["no rank of algo-3 has answered", "algo-4 has not answered"]
    assert summary["clocks"]["method"] == BY_ENDS
    merged = json.loads(gzip.decompress((tmp_path / summary["merged"]).read_bytes()))
    events = merged["traceEvents"]
    labels = {item["pid"]: item["args"]["name"] for item in events if item["name"] == "process_name"}
    assert labels == {0: "rank 0 (algo-1)", 1: "rank 0 (algo-1) GPU 0", 1000: "rank 1 (algo-2)"}
    steps = [(item["pid"], item["name"], item["ts"]) for item in events if item.get("cat") == "step"]
    assert steps[:3] == [(0, "step 10", 0), (0, "step 11", 100_000), (0, "step 12", 200_000)]
    assert [at for _, _, at in steps[3:]] == pytest.approx([0, 100_000, 200_000], abs=1), "moved onto the same axis"
    ends = {
        pid: [item["ts"] + item["dur"] for item in events if item["pid"] == pid and item["name"] == "gloo:all_reduce"]
        for pid in (0, 1000)
    }
    assert ends[0] == pytest.approx(ends[1000], abs=1)
    assert [item["id"] for item in events if item.get("ph") == "s"] == ["0.4"]
    assert not list(tmp_path.glob(".*"))


def test_a_folder_without_any_trace_has_a_summary_with_errors(tmp_path):
    (tmp_path / "request.json").write_text(json.dumps({"hosts": ["algo-1"]}))
    summary = analyse(tmp_path)
    assert (summary["ranks"], summary["merged"], summary["errors"]) == ([], "", ["algo-1 has not answered"])
