"""Windows of torch.profiler in programs with a GPU, whose calls are faked. Functions `test_...()`."""

import threading
import time
from contextlib import contextmanager
from unittest import mock

import torch
from profiling_program import LIMIT_S, program

from clary.train import graph_captures
from clary.train.profiling import recorder as recorder_module
from clary.train.profiling import recording
from clary.train.profiling.window import Window

DEVICE = 3


class FakeCuda:
    """Replaces the calls of `torch.cuda` that a window makes: GPU 3 is the program's."""

    def __init__(self):
        self.is_capturing = False
        self.has_settled = True
        self.entered = []  # GPUs that were made the current one
        self.waits = []  # GPUs for which a synchronisation was called
        self.asked = []  # queries whether there is a GPU: the first one decides for forked children, too

    @contextmanager
    def device(self, number):
        self.entered.append(number)
        yield

    def is_available(self):
        self.asked.append(True)
        return False

    def wait(self):
        self.waits.append(self.entered[-1])

    def captures(self):
        return self.is_capturing

    def current_stream(self, _):
        return mock.Mock(query=lambda: self.has_settled)

    @contextmanager
    def in_place(self):
        with (
            mock.patch.object(torch.cuda, "is_initialized", return_value=True),
            mock.patch.object(torch.cuda, "is_current_stream_capturing", self.captures),
            mock.patch.object(torch.cuda, "current_device", return_value=DEVICE),
            mock.patch.object(torch.cuda, "is_available", self.is_available),
            mock.patch.object(torch.cuda, "device", self.device),
            mock.patch.object(torch.cuda, "current_stream", self.current_stream),
            mock.patch.object(torch.cuda, "synchronize", self.wait),
        ):
            yield self


@contextmanager
def on_gpu(**options):
    with FakeCuda().in_place() as cuda, program(**options) as running:
        yield cuda, running


def name_gpu(window):
    """Make a profile synchronise with the GPU, as it does in a torch with CUDA."""
    window._profiler.profiler.use_device = "cuda"


def activities_of(window):
    return {activity.name for activity in window._profiler.activities}


def test_a_window_ends_on_the_gpu_on_which_it_began():
    with FakeCuda().in_place() as cuda:
        window = Window(on_other=lambda: None)
        window.start()
        assert window.has_gpu
        assert "CUDA" in activities_of(window)
        name_gpu(window)
        window.stop()
        assert cuda.waits == [DEVICE]


def test_a_window_that_no_step_begins_leaves_the_gpu_out():
    with FakeCuda().in_place() as cuda:
        window = Window(on_other=lambda: None, all_threads=True)
        window.start()
        assert (window.has_gpu, window.leaves_out_gpu) == (False, True)
        assert activities_of(window) == {"CPU"}
        window.stop()
        assert cuda.entered == []


def test_cuda_is_not_queried_in_a_program_that_has_not_initialised_it():
    cuda = FakeCuda()
    with mock.patch.object(torch.cuda, "is_available", cuda.is_available):
        window = Window(on_other=lambda: None)
        window.start()
        window.stop()
    assert (cuda.asked, window.has_gpu, window.leaves_out_gpu) == ([], False, False)


def test_the_answer_states_whether_a_gpu_was_recorded_or_left_out():
    with on_gpu() as (_, running):
        running.step()
        running.ask(num_steps=2)
        assert running.step_until("done")["has_gpu"]
    with on_gpu() as (_, running):
        running.ask(num_steps=0, duration_s=0.2)
        end_s = time.monotonic() + LIMIT_S
        while running.state()["state"] != "done":
            assert time.monotonic() < end_s, running.state()
            torch.ones(4, 4) @ torch.ones(4, 4)
            time.sleep(0.01)
        facts = running.state()
        assert (facts["has_gpu"], facts["by_time"]) == (False, True)
        assert "without its GPU" in facts["words"]


def test_a_step_under_graph_capture_begins_and_ends_no_window():
    with on_gpu() as (cuda, running):
        running.step()
        cuda.is_capturing = True
        running.ask(num_steps=2)
        end_s = time.monotonic() + LIMIT_S
        while not running.recorder._requests.has_any:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        for _ in range(5):
            running.step()
        assert running.state()["state"] in (None, "waiting")
        cuda.is_capturing = False
        running.step_until("recording")
        cuda.is_capturing = True
        for _ in range(5):
            running.step()
        assert running.state()["state"] == "recording"
        cuda.is_capturing = False
        running.step_until("done")


def test_a_window_does_not_end_while_another_thread_captures_a_graph():
    with on_gpu() as (_, running):
        running.step()
        running.ask(num_steps=1)
        running.step_until("recording")
        graph_captures.gate.begin_capture()
        try:
            for _ in range(5):
                running.step()
            assert running.state()["state"] == "recording"
        finally:
            graph_captures.gate.end_capture()
        running.step_until("done")


def test_a_capture_that_does_not_end_does_not_keep_a_window_open_forever():
    with on_gpu() as (_, running), mock.patch.object(recording, "MAX_WINDOW_S", 0.5):
        running.step()
        graph_captures.gate.begin_capture()
        try:
            running.ask(num_steps=1)
            running.step_until("done")
        finally:
            graph_captures.gate.end_capture()


def test_the_program_s_own_profiler_starts_even_while_another_thread_captures_a_graph():
    with on_gpu() as (cuda, running):
        running.step()
        running.ask(num_steps=100)
        running.step_until("recording")
        window = running.recorder._open.window
        name_gpu(window)
        graph_captures.gate.begin_capture()
        try:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
                running.step()
        finally:
            graph_captures.gate.end_capture()
        assert own.key_averages()
        assert (window.is_running, cuda.waits) == (False, [])
        running.step_until("done")
        assert "started torch.profiler itself" in running.state()["words"]


def test_a_window_without_a_gpu_does_not_wait_for_captures():
    """Otherwise a child that was forked during a capture would wait at the gate forever."""
    with program() as running, mock.patch.object(graph_captures, "gate", None):
        running.step()
        running.ask(num_steps=2)
        running.step_until("done")


def test_a_program_that_ends_while_its_gpu_hangs_is_not_blocked():
    with on_gpu() as (cuda, running), mock.patch.object(recorder_module, "_END_S", 0.2):
        running.step()
        running.ask(num_steps=100)
        running.step_until("recording")
        cuda.has_settled = False
        window = running.recorder._open.window
        name_gpu(window)
        running.recorder.close()
        facts = running.state()
        assert facts["state"] == "done"
        assert "while its GPU was at work" in facts["words"]
        assert not window.is_running
        assert cuda.waits == []


def test_a_program_that_ends_while_its_gpu_finishes_writes_its_trace():
    with on_gpu() as (_, running):
        running.step()
        running.ask(num_steps=100)
        running.step_until("recording")
        running.recorder.close()
        assert running.state()["state"] == "done"
        assert "the program ended before the window did" in running.state()["words"]


def test_a_program_can_end_while_a_window_is_being_ended():
    with program() as running, mock.patch.object(recorder_module, "_END_S", 0.2):
        held, free = threading.Event(), threading.Event()

        def hold():
            with running.recorder._lock:
                held.set()
                free.wait(LIMIT_S)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(LIMIT_S)
        began_s = time.monotonic()
        running.recorder.close()
        free.set()
        thread.join(LIMIT_S)
        assert time.monotonic() - began_s < LIMIT_S


def test_a_window_whose_step_does_not_end_is_cut_off_without_synchronising_the_gpu():
    with on_gpu() as (cuda, running), mock.patch.object(recording, "MAX_WINDOW_S", 0.5):
        running.step()
        running.ask(num_steps=100_000)
        running.step_until("recording")
        name_gpu(running.recorder._open.window)
        end_s = time.monotonic() + LIMIT_S
        while running.state()["state"] != "done":  # no step ends in this time
            assert time.monotonic() < end_s, running.state()
            time.sleep(0.01)
        assert "cut off" in running.state()["words"]
        assert cuda.waits == []
