"""Overlap of computing and communicating over backend smddp: tuned buckets, backward pass, sharded layers, traces."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from torch_ranks import ROOT, TRAIN_PYTHON, assert_passed, names

PROGRAM = Path(__file__).with_name("torch_overlap_program.py")

pytestmark = pytest.mark.xdist_group("torch-overlap")  # a program runs once per worker


@pytest.mark.timeout(200)
@pytest.mark.sweep("size")
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_overlap_of_computing_and_communicating(name: str, size: int) -> None:
    assert_passed(PROGRAM, name, size)


@pytest.mark.timeout(200)
@pytest.mark.long
def test_traces_show_both_lanes_of_each_rank_and_their_overlap(tmp_path: Path) -> None:
    for name in names(PROGRAM):
        assert_passed(PROGRAM, name, 2, CLARY_COLLECTIVE_TRACE=str(tmp_path / "trace"), RANK="{rank}")
    output = tmp_path / "trace.json"
    command = [str(TRAIN_PYTHON), "-m", "clary.train.collective.trace", "merge", str(tmp_path / "trace"), str(output)]
    subprocess.run(command, check=True, timeout=60, env={"PYTHONPATH": str(ROOT / "src")})
    events: list[dict[str, Any]] = json.loads(output.read_text(encoding="ascii"))["traceEvents"]
    lanes = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {pid for pid, _ in lanes} == {0, 1}
    for rank in (0, 1):
        spans = [event for event in events if event["ph"] == "X" and event["pid"] == rank]
        computing = [span for span in spans if lanes[rank, span["tid"]] == "compute"]
        communicating = [span for span in spans if lanes[rank, span["tid"]].startswith("communication ")]
        assert any(span["name"].startswith("backward Linear") for span in computing)
        assert all(span["args"]["bytes"] > 0 for span in communicating if span["name"] == "all_reduce")
        if rank == 0:  # the fast rank, whose gathers wait while it computes
            layers = [span for span in computing if span["name"] == "forward Sleep"]
            gathers = [span for span in communicating if span["name"] == "all_gather"]
            assert sum(_shared_us(layer, gather) for layer in layers for gather in gathers) > 0.1e6


def _shared_us(one: dict[str, Any], other: dict[str, Any]) -> float:
    end = min(one["ts"] + one["dur"], other["ts"] + other["dur"])
    return max(0.0, float(end - max(one["ts"], other["ts"])))
