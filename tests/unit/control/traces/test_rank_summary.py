"""Shares of a step, from hand-made events."""

import pytest
from trace_events import event, trace_of

from clary.control.traces import rank_trace
from clary.control.traces.rank_summary import summarize
from clary.control.traces.rank_trace import self_times

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def annotation(name, begin, end, **members):
    return event(name, begin, end, category="user_annotation", **members)


def test_shares_of_a_step_follow_from_the_events():
    trace = trace_of(
        [
            annotation(LOADER, 0, 10),
            event("aten::stack", 2, 8),  # the loader's own work counts as waiting for data
            event("aten::linear", 10, 40),
            event("aten::addmm", 10, 38),
            event("c10d::allreduce_", 40, 41),
            annotation("gloo:all_reduce", 41, 81, thread=9),
            event("aten::mul", 41, 61),  # half of the collective is hidden
            event("aten::late", 150, 160),  # after the window
        ]
    )
    found = summarize(trace)
    assert found["data_wait_share"] == pytest.approx(0.10)
    assert found["compute_share"] == pytest.approx(0.50)
    assert found["communication_share"] == pytest.approx(0.41)
    assert found["exposed_communication_share"] == pytest.approx(0.21)
    assert found["rest_share"] == pytest.approx(0.19)
    assert (found["step_ms"], found["num_steps"], found["num_collectives"]) == (pytest.approx(100), 1, 1)
    top = {item["name"]: item for item in found["top"]}
    assert top["aten::linear"]["self_ms"] == pytest.approx(2)
    assert top["aten::addmm"]["self_ms"] == pytest.approx(28)
    assert "aten::late" not in top
    assert found["top"][0]["name"] == "gloo:all_reduce"


def test_time_in_which_an_operation_waits_does_not_count_as_computing():
    """A backward pass that waits for a collective has one operation around the wait, and no operation inside of it."""
    trace = trace_of(
        [
            event("autograd::engine::evaluate_function: AddmmBackward0", 0, 100),
            event("aten::mm", 0, 20),
            annotation("gloo:all_reduce", 20, 90, thread=9),
        ]
    )
    found = summarize(trace)
    assert found["compute_share"] == pytest.approx(0.2)
    assert found["exposed_communication_share"] == pytest.approx(0.7)


def test_an_operator_around_small_ones_computes_except_during_a_wait_for_other_ranks():
    trace = trace_of(
        [
            event("aten::mm", 0, 40),
            event("aten::resolve_conj", 0, 1),
            event("aten::mm", 50, 90),
            event("_c10d_functional::wait_tensor", 60, 90),  # a tensor of several ranks waits inside of its operator
        ]
    )
    assert summarize(trace)["compute_share"] == pytest.approx(0.5)


def test_only_kernels_count_if_there_are_any():
    trace = trace_of(
        [
            event("aten::addmm", 0, 5),
            event("ampere_sgemm", 10, 60, category="kernel", pid=0, thread=7),
            event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 90, category="kernel", pid=0, thread=20),
            annotation("nccl:all_reduce", 5, 6),
            event("c10d::allreduce_", 5, 6),
        ]
    )
    found = summarize(trace)
    assert found["on_accelerator"]
    assert found["compute_share"] == pytest.approx(0.5)
    assert found["communication_share"] == pytest.approx(0.4), "the call only puts it in line"
    assert found["exposed_communication_share"] == pytest.approx(0.3)
    assert found["num_collectives"] == 1
    assert [item["name"] for item in found["top"]][:2] == ["ampere_sgemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"]


def test_a_window_by_time_has_no_steps():
    found = summarize(trace_of([event("aten::addmm", 0, 50)], by_time=True))
    assert (found["num_steps"], found["step_ms"], found["window_ms"]) == (0, None, pytest.approx(100))


def test_the_longest_step_is_given_with_the_mean():
    found = summarize(trace_of([], bounds=(0, 10, 40, 50)))
    assert (found["step_ms"], found["longest_step_ms"]) == (pytest.approx(50 / 3), pytest.approx(30))


def test_invalid_events_are_ignored_and_too_many_events_are_reported(monkeypatch):
    odd = [
        {"ph": "X"},
        {"ph": "X", "ts": "x", "dur": 1},
        {"ph": "X", "ts": float("nan"), "dur": 1},
        {"ph": "X", "ts": 10**400, "dur": 1},
        {**event("aten::c", 0, 0), "pid": [], "tid": {}},
        {"ph": "i", "ts": 1},
        {**event("aten::a", 0, 1), "dur": -5},
    ]
    assert summarize(trace_of(odd))["compute_share"] == 0
    monkeypatch.setattr(rank_trace, "MAX_EVENTS", 2)
    assert summarize(trace_of([event("aten::a", at, at + 1) for at in range(5)]))["is_cut"]


def test_times_of_nested_operations_add_up_on_each_thread():
    trace = trace_of(
        [event("a", 0, 10), event("b", 1, 4), event("c", 2, 3), event("d", 5, 6), event("a", 0, 10, thread=2)]
    )
    times = {
        (item.name, int(item.thread[1])): (took / 1000, is_leaf) for item, took, is_leaf in self_times(trace.operations)
    }
    rounded = {key: (round(took, 6), is_leaf) for key, (took, is_leaf) in times.items()}
    assert rounded == {
        ("a", 1): (6, False),
        ("b", 1): (2, False),
        ("c", 1): (1, True),
        ("d", 1): (1, True),
        ("a", 2): (10, True),
    }
