"""Captures of graphs and waits of other threads take turns; the calls are those of a class that stands for torch's."""

import sys
import threading
from types import SimpleNamespace

import pytest

from clary.train import graph_captures
from clary.train.graph_captures import CaptureGate, watch

DEADLINE_S = 30.0


class FakeGraph:
    """Has the two calls of `torch.cuda.CUDAGraph` through which captures go."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.calls: list[object] = []

    def capture_begin(self, pool=None, capture_error_mode="global"):
        if self.fails:
            raise RuntimeError("CUDA error")
        self.calls.append((pool, capture_error_mode))

    def capture_end(self):
        self.calls.append("end")
        if self.fails:
            raise RuntimeError("CUDA error")


@pytest.fixture(params=[("torch.cuda.graphs", "CUDAGraph"), ("torch.accelerator.graphs", "Graph")])
def graph_kind(request, monkeypatch):
    """A class of graphs that is watched, with a gate of its own."""
    module, name = request.param
    kind = type("FakeGraph", (FakeGraph,), {**vars(FakeGraph)})
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: kind}))
    monkeypatch.setattr(graph_captures, "gate", CaptureGate())
    watch()
    watch()
    return kind


def is_free() -> bool:
    with graph_captures.gate.between(0.0) as free:
        return free


def test_nobody_may_wait_for_a_gpu_while_a_graph_is_captured(graph_kind):
    graph = graph_kind()
    assert is_free()
    graph.capture_begin("pool", capture_error_mode="relaxed")
    assert not is_free()
    graph.capture_end()
    assert is_free()
    assert graph.calls == [("pool", "relaxed"), "end"]


def test_captures_that_fail_at_either_end_are_no_captures_any_more(graph_kind):
    graph = graph_kind(fails=True)
    with pytest.raises(RuntimeError):
        graph.capture_begin()
    assert is_free()
    graph.fails = False
    graph.capture_begin()
    graph.fails = True
    with pytest.raises(RuntimeError):
        graph.capture_end()
    assert is_free()


def test_a_capture_waits_until_nobody_waits_for_the_gpu(graph_kind):
    graph = graph_kind()
    with graph_captures.gate.between(0.0) as free:
        assert free
        thread = threading.Thread(target=graph.capture_begin)
        thread.start()
        thread.join(0.2)
        assert not graph.calls
    thread.join(DEADLINE_S)
    assert graph.calls
    assert not is_free()


def test_who_waits_for_a_gpu_goes_on_when_the_capture_ends(graph_kind):
    graph, seen = graph_kind(), []

    def wait():
        with graph_captures.gate.between(DEADLINE_S) as free:
            seen.append(free)

    graph.capture_begin()
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.2)
    assert not seen
    graph.capture_end()
    thread.join(DEADLINE_S)
    assert seen == [True]


def test_a_gpu_that_hangs_does_not_keep_a_capture_for_ever(graph_kind, monkeypatch):
    monkeypatch.setattr(graph_captures, "BEGIN_LIMIT_S", 0.05)
    graph = graph_kind()
    with graph_captures.gate.between(0.0):
        graph.capture_begin()
    assert graph.calls


def test_without_torch_nothing_is_watched(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.cuda.graphs", raising=False)
    watch()
    monkeypatch.setitem(sys.modules, "torch.cuda.graphs", SimpleNamespace())
    watch()
