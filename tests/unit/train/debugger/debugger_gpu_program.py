"""The debugger with CUDA graphs and streams: torch's own calls if they work without a GPU, otherwise stand-ins."""

import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch

from clary.train import debugger, graph_captures
from clary.train.debugger.capture import copying
from clary.train.debugger.capture.buffers import Pieces
from clary.train.debugger.capture.copying import StepCopy
from clary.train.debugger.errors import DebuggerError
from clary.train.debugger.hook import Hook, del_hook

torch.set_num_threads(1)
LIMIT_S = 30.0


class FakeDevice:
    """Stands for `torch.cuda.device`, which a torch without GPUs does not have."""

    current = None

    def __init__(self, number):
        self.number = number

    def __enter__(self):
        FakeDevice.current = self.number

    def __exit__(self, *_):
        FakeDevice.current = None


class FakeEvent:
    """Stands for `torch.cuda.Event`: records its streams, and the captures and the device of each wait."""

    made = []

    def __init__(self, blocking=False):
        self.blocking, self.streams, self.captures, self.devices = blocking, [], [], []
        self.made.append(self)

    def record(self, stream):
        self.streams.append(stream.cuda_stream)

    def synchronize(self):
        self.captures.append(graph_captures.gate._num_captures)
        self.devices.append(FakeDevice.current)


def step_copy():
    pieces = Pieces()
    return StepCopy(None, pieces.acquire(1.0), pieces)


def marked(*streams):
    """Return a step with copies on streams of GPU 3."""
    FakeEvent.made.clear()
    copy = step_copy()
    tensor = SimpleNamespace(device="cuda:3", get_device=lambda: 3)
    with mock.patch.object(torch.cuda, "Event", FakeEvent):
        for stream in streams:
            with mock.patch.object(torch.cuda, "current_stream", lambda _, at=stream: SimpleNamespace(cuda_stream=at)):
                copy._mark_end(tensor)
    return copy


def failure_of(call):
    try:
        call()
    except DebuggerError as error:
        return str(error)
    return ""


@mock.patch.object(torch.cuda, "device", FakeDevice)
def test_the_writer_waits_for_the_last_copy_of_each_stream():
    copy = marked(7, 9, 7)
    assert copy.tensors() == []
    assert [(event.blocking, event.streams, event.captures) for event in FakeEvent.made] == [
        (True, [7, 7], [0]),
        (True, [9], [0]),
    ]


@mock.patch.object(torch.cuda, "device", FakeDevice)
def test_the_writer_waits_on_the_gpu_that_copies_and_initialises_no_other():
    copy = marked(7)
    assert copy.tensors() == []
    assert [event.devices for event in FakeEvent.made] == [[3]]


@mock.patch.object(torch.cuda, "device", FakeDevice)
def test_the_writer_waits_until_a_graph_capture_has_ended():
    copy = marked(7)
    graph_captures.gate.begin_capture()
    try:
        thread = threading.Thread(target=copy.tensors)
        thread.start()
        thread.join(0.2)
        assert not FakeEvent.made[0].captures
    finally:
        graph_captures.gate.end_capture()
    thread.join(LIMIT_S)
    assert FakeEvent.made[0].captures == [0]


def test_a_capture_that_does_not_end_costs_the_step_and_is_reported():
    copy = marked(7)
    graph_captures.gate.begin_capture()
    try:
        with mock.patch.object(copying, "_CAPTURE_S", 0.05):
            assert "the capture of a CUDA graph has lasted" in failure_of(copy.tensors)
    finally:
        graph_captures.gate.end_capture()
    assert not FakeEvent.made[0].captures


def test_torch_s_own_graph_classes_are_patched_once():
    graph_captures.watch()
    begin = torch.cuda.CUDAGraph.capture_begin
    assert begin.__wrapped__.__qualname__ == "CUDAGraph.capture_begin"
    graph_captures.watch()
    assert torch.cuda.CUDAGraph.capture_begin is begin
    newer = getattr(getattr(torch, "accelerator", None), "Graph", None)  # older releases do not have this class
    assert newer is None or newer.capture_begin.__wrapped__.__qualname__ == "Graph.capture_begin"


def graphing_error(model):
    """Return the error of torch for a graph of a model on a machine without a GPU."""
    try:
        torch.cuda.make_graphed_callables(model, (torch.ones(2, 4),))
    except (RuntimeError, AssertionError, AttributeError, TypeError) as error:
        return str(error)
    raise AssertionError("there is a GPU")


def test_a_model_whose_steps_are_counted_may_become_a_graph():
    original = torch.cuda.make_graphed_callables
    with tempfile.TemporaryDirectory() as folder:
        try:
            hook = Hook(Path(folder), save_config=debugger.SaveConfig(save_interval=2), strict=True)
            model = torch.nn.Linear(4, 3)
            hook.register_module(model)
            model(torch.ones(2, 4)).sum().backward()
            assert len(model._forward_pre_hooks) == 1
            assert "hooks" not in graphing_error(model)
            assert len(model._forward_pre_hooks) == 1, "the hook that counts steps is installed again"
            model(torch.ones(2, 4))
            assert hook.step == 1
            replaced = Hook(Path(folder) / "other", strict=True)
            assert torch.cuda.make_graphed_callables is not original
            replaced.close()
        finally:
            del_hook()
    assert torch.cuda.make_graphed_callables is original
    assert torch.cuda.graphs.make_graphed_callables is original


def test_a_hook_of_the_program_still_prevents_a_graph():
    model = torch.nn.Linear(4, 3)
    model.register_forward_pre_hook(lambda *_: None)
    with tempfile.TemporaryDirectory() as folder:
        try:
            Hook(Path(folder), strict=True).register_module(model)
            assert "hooks" in graphing_error(model)
        finally:
            del_hook()


def test_numbers_are_saved_with_any_default_device():
    """`meta` stands for a GPU, on which reading a number would synchronise."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            hook = Hook(Path(folder), save_config=debugger.SaveConfig(save_interval=1), strict=True)
            model = torch.nn.Linear(4, 3)
            hook.register_module(model)
            model(torch.ones(2, 4))
            with torch.device("meta"):
                hook.save_scalar("rate", 0.5)
                hook.save_tensor("numbers", [1.0, 2.0])
            hook.close()
            trial = debugger.create_trial(folder)
            assert trial.tensor("scalar/rate").value(0) == 0.5
            assert trial.tensor("numbers").value(0).tolist() == [1.0, 2.0]
        finally:
            del_hook()
