"""Traces of ranks on GPUs: kernels that run long after the program has launched them.

Categories, and the number that a kernel shares with its launch, are those of Kineto's traces; events are hand-made.
"""

import json

import pytest
from trace_events import event, packed, profile_of, trace_of

from clary.base.plain import to_plain
from clary.contract.deep_profiles import HostProfile
from clary.control.traces.across_ranks import BY_ENDS, ONE_CLOCK, marks_of, set_clocks, skews
from clary.control.traces.analysis import analyse

BOUNDS = (0, 100, 200, 300)
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def kernel(name, begin, end, number):
    return {**event(name, begin, end, category="kernel", pid=0, thread=7), "args": {"correlation": number, "stream": 7}}


def launch(at, number, name="cudaLaunchKernelExC"):
    return {**event(name, at, at + 0.01, category="cuda_runtime"), "args": {"correlation": number}}


def behind(lag_ms, *, late_ms=0.0):
    """Return three steps with one collective each, which the GPU ends `lag_ms` after the program has launched it."""
    found = []
    for number, begin in enumerate(BOUNDS[:3]):
        ends = begin + 60 + lag_ms  # the same moment on all ranks
        found += [
            event("c10d::allreduce_", begin + 20, begin + 20.5),
            launch(begin + 20.2, number),
            kernel("ampere_sgemm", ends - 30, ends - 20 + late_ms, 100 + number),
            kernel(REDUCE, ends - 20 + late_ms, ends, number),
        ]
    return found


def marks(rank, lag_ms, **members):
    late_ms = members.pop("late_ms", 0.0)
    return marks_of(trace_of(behind(lag_ms, late_ms=late_ms), rank=rank, bounds=BOUNDS, **members))


def test_the_rank_whose_gpu_is_late_is_named_and_not_the_rank_whose_launch_is_late():
    both = [marks(0, 10), marks(1, 10, late_ms=8)]
    clocks = set_clocks(both)
    found = skews(both, clocks)
    assert clocks.method == ONE_CLOCK
    assert found["last"] == {"0": 0, "1": 3}
    assert found["median_ms"] == pytest.approx(8)
    assert found["greatest"][0]["name"] == REDUCE


def test_a_kernel_belongs_to_the_step_that_launched_it_however_late_it_runs():
    mark = marks(0, 130)
    assert [step for step, _, _ in sorted(mark.completions)] == [10, 11, 12]
    assert mark.completions[10, REDUCE, 0] - mark.arrivals[10, REDUCE, 0] == pytest.approx(20_000)


def test_clocks_are_aligned_by_kernels_of_one_collective_although_gpus_lag_differently():
    """Both GPUs end a collective together; by the second clock, 5 s ahead, its program launched it far earlier."""
    first = marks(0, 30)
    second = marks(1, 130, ahead_ms=4900.0, boot_id="another")
    clocks = set_clocks([first, second])
    assert clocks.method == BY_ENDS
    assert clocks.offsets[1] == pytest.approx(-5_000_000)


def test_a_kernel_of_unknown_origin_belongs_to_the_step_in_which_it_runs():
    events = [kernel(REDUCE, 120, 130, 5), {**launch(10, 0), "args": {}}]
    events[0]["args"] = {}
    assert list(marks_of(trace_of(events, bounds=BOUNDS)).arrivals) == [(11, REDUCE, 0)]


def test_a_gpu_without_recorded_kernels_is_reported(tmp_path):
    (tmp_path / "request.json").write_text(json.dumps({"hosts": ["algo-1"]}))
    profiles = (profile_of(0, bounds=BOUNDS, has_gpu=True), profile_of(1, bounds=BOUNDS, has_gpu=True))
    answer = HostProfile(number=1, host="algo-1", is_final=True, ranks=profiles)
    (tmp_path / "algo-1.json").write_text(json.dumps(to_plain(answer)))
    (tmp_path / "rank-0.trace.json.gz").write_bytes(packed([event("aten::mm", 0, 5)]))
    (tmp_path / "rank-1.trace.json.gz").write_bytes(packed(behind(10)))
    without, with_kernels = analyse(tmp_path)["ranks"]
    assert "no kernel of its GPU was recorded" in without["words"]
    assert with_kernels["words"] == ""
