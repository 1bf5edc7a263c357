"""Captures of CUDA graphs and waits of other threads exclude each other; a fake class replaces torch's graphs."""

import sys
import threading
from types import SimpleNamespace

import pytest

from clary.train import graph_captures
from clary.train.graph_captures import CaptureGate, watch

DEADLINE_S = 30.0


class FakeGraph:
    """Has the two methods of `torch.cuda.CUDAGraph` by which a capture begins and ends."""

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
    """A patched class of graphs, with a separate gate."""
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


def test_no_thread_may_wait_for_a_gpu_during_a_capture(graph_kind):
    graph = graph_kind()
    assert is_free()
    graph.capture_begin("pool", capture_error_mode="relaxed")
    assert not is_free()
    graph.capture_end()
    assert is_free()
    assert graph.calls == [("pool", "relaxed"), "end"]


def test_a_capture_that_fails_to_begin_or_to_end_counts_as_ended(graph_kind):
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


def test_a_capture_waits_until_no_thread_waits_for_the_gpu(graph_kind):
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


def test_a_thread_that_waits_for_a_gpu_continues_when_the_capture_ends(graph_kind):
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


def test_a_hanging_gpu_does_not_block_a_capture_forever(graph_kind, monkeypatch):
    monkeypatch.setattr(graph_captures, "BEGIN_LIMIT_S", 0.05)
    graph = graph_kind()
    with graph_captures.gate.between(0.0):
        graph.capture_begin()
    assert graph.calls


def test_without_torch_no_class_is_patched(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.cuda.graphs", raising=False)
    watch()
    monkeypatch.setitem(sys.modules, "torch.cuda.graphs", SimpleNamespace())
    watch()
