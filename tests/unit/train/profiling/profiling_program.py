"""Windows of torch.profiler in unchanged programs. Functions `test_...()`; see `torch_programs`."""

import gzip
import json
import os
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import torch

from clary.base.plain import to_plain
from clary.contract.deep_profiles import ProfileRequest
from clary.train.profiling import recorder as recorder_module
from clary.train.profiling import recording, waiting_requests
from clary.train.profiling.recorder import Recorder
from clary.train.profiling.step_counter import StepCounter

LIMIT_S = 40.0
recorder_module.LOOK_S = 0.05
waiting_requests.NO_STEPS_TIMED_S = 0.5


class Program:
    """A model in training, with a recorder installed as `install` does it."""

    def __init__(self, folder, num_optimizers=1):
        self.folder = Path(folder)
        self.recorder = Recorder(self.folder)
        self.model = torch.nn.Linear(8, 8)
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=0.01) for _ in range(num_optimizers)]

    def step(self):
        self.model(torch.ones(4, 8)).sum().backward()
        for optimizer in self.optimizers:
            optimizer.step()
            self.recorder.on_step(optimizer)

    def ask(self, **request):
        leave(self.folder, ProfileRequest(**{"number": 1, "num_steps": 3, **request}))

    def state(self, number=1, rank=0):
        try:
            return json.loads((self.folder / "out" / str(number) / f"rank-{rank}.json").read_text())
        except OSError:
            return {"state": None}

    def step_until(self, state, number=1):
        end_s = time.monotonic() + LIMIT_S
        while self.state(number)["state"] != state:
            assert time.monotonic() < end_s, self.state(number)
            self.step()
            time.sleep(0.002)
        return self.state(number)

    def trace(self, number=1):
        return json.loads(gzip.decompress((self.folder / f"out/{number}/rank-0.trace.json.gz").read_bytes()))


@contextmanager
def program(**options):
    with tempfile.TemporaryDirectory() as folder:
        made = Program(folder, **options)
        made.recorder.start()
        try:
            yield made
        finally:
            made.recorder.close()


def leave(folder, request):
    draft = folder / ".draft"
    draft.write_text(json.dumps(to_plain(request)))
    draft.replace(folder / f"request-{request.number}.json")


def test_a_request_during_the_training_gives_a_trace_of_its_number_of_steps():
    with program() as running:
        for _ in range(3):
            running.step()
        running.ask(num_steps=4)
        facts = running.step_until("done")
        assert len(facts["bounds_ns"]) == 5
        assert facts["bounds_ns"] == sorted(facts["bounds_ns"])
        assert facts["first_step"] >= 3
        assert facts["boot_id"]
        assert facts["framework"].startswith("torch ")
        events = running.trace()["traceEvents"]
        assert sum(event["name"] == "aten::addmm" for event in events) == 4
        base = running.trace()["baseTimeNanoseconds"]
        inside = [event for event in events if event["name"] == "aten::addmm"]
        for event in inside:
            assert facts["bounds_ns"][0] <= base + event["ts"] * 1000 <= facts["bounds_ns"][-1]
        assert not [path for path in (running.folder / "out/1").iterdir() if path.name.endswith((".part", ".new"))]


def test_a_window_begins_at_the_step_that_was_named_before_the_program_started():
    with tempfile.TemporaryDirectory() as folder:
        leave(Path(folder), ProfileRequest(number=1, num_steps=2, start_step=5))
        running = Program(folder)
        running.recorder.start()
        facts = running.step_until("done")
        running.recorder.close()
        assert (facts["first_step"], len(facts["bounds_ns"])) == (5, 3)


def test_several_optimizers_make_one_step():
    with program(num_optimizers=3) as running:
        for _ in range(4):
            running.step()
        assert running.recorder._steps.num_steps == 4
        running.ask(num_steps=2)
        running.step_until("done")
        events = running.trace()["traceEvents"]
        assert sum(event["name"] == "aten::addmm" for event in events) == 2


def test_an_optimizer_that_joins_later_or_pauses_does_not_stop_the_count():
    counter = StepCounter()
    first, second = object(), object()
    assert [counter.is_boundary(item) for item in (first, first, second, first, second)] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert [counter.is_boundary(item) for item in (second, second)] == [True, True]
    assert counter.num_steps == 5


def test_a_request_is_refused_while_the_program_profiles_itself():
    with program() as running:
        running.step()
        with torch.profiler.profile() as own:
            running.ask()
            facts = running.step_until("refused")
        assert "torch.profiler itself" in facts["words"]
        assert len(own.events()) > 0


def test_a_window_makes_way_for_a_profiler_of_the_program():
    with program() as running:
        running.step()
        running.ask(num_steps=100_000)
        running.step_until("recording")
        with torch.profiler.profile() as own:
            running.step()
        assert any(event.key == "aten::addmm" for event in own.key_averages())
        facts = running.step_until("done")
        assert "cut off" in facts["words"]
        with torch.autograd.profiler.profile() as old:
            running.step()
        assert len(old.function_events) > 0


def test_a_cancelled_window_can_be_followed_by_another():
    with program() as running:
        running.step()
        running.ask(num_steps=100_000)
        running.step_until("recording")
        running.ask(num_steps=100_000, is_cancelled=True)
        running.step_until("done")
        running.ask(number=2, num_steps=1)
        assert len(running.step_until("done", number=2)["bounds_ns"]) == 2


def test_a_program_without_optimizers_is_recorded_by_time():
    with program() as running:
        running.ask(num_steps=0, duration_s=0.5)
        ending = threading.Event()

        def work():
            while not ending.is_set():
                torch.nn.functional.linear(torch.ones(4, 8), torch.ones(8, 8))
                time.sleep(0.001)

        worker = threading.Thread(target=work)
        worker.start()
        end_s = time.monotonic() + LIMIT_S
        try:
            while running.state()["state"] not in ("done", "failed", "refused"):
                assert time.monotonic() < end_s
                time.sleep(0.05)
        finally:
            ending.set()
            worker.join()
        facts = running.state()
        assert (facts["state"], facts["by_time"], len(facts["bounds_ns"])) == ("done", True, 2), facts
        assert any(event["name"] == "aten::linear" for event in running.trace()["traceEvents"])


def test_a_trace_is_written_when_the_program_ends_within_the_window():
    with program() as running:
        running.step()
        running.ask(num_steps=100_000)
        running.step_until("recording")
        for _ in range(3):
            running.step()
        running.recorder.close()
        facts = running.state()
        assert facts["state"] == "done"
        assert "the program ended before the window did" in facts["words"]
        assert len(facts["bounds_ns"]) >= 4


def without_all_threads():
    """Make torch refuse sessions over all threads, as before 2.8; return a function that undoes this."""
    original = torch._C._profiler._ExperimentalConfig

    def older(**options):
        if "profile_all_threads" in options:
            raise TypeError("unknown")
        return original(**options)

    torch._C._profiler._ExperimentalConfig = older
    return lambda: setattr(torch._C._profiler, "_ExperimentalConfig", original)


def steps_in_another_thread(running, number):
    def work():
        for _ in range(number):
            running.step()

    worker = threading.Thread(target=work)
    worker.start()
    worker.join(LIMIT_S)
    assert not worker.is_alive()


def test_a_window_may_end_at_a_step_of_another_thread():
    with program() as running:
        running.step()
        running.ask(num_steps=100_000)
        running.step_until("recording")
        running.recorder._open.request = ProfileRequest(number=1, num_steps=1)
        steps_in_another_thread(running, 3)
        assert not torch.autograd.profiler._is_profiler_enabled
        running.step_until("done")


def test_a_single_thread_window_is_not_ended_by_another_thread():
    undo = without_all_threads()
    try:
        with program() as running:
            running.step()
            running.ask(num_steps=100_000)
            running.step_until("recording")
            running.recorder._open.request = ProfileRequest(number=1, num_steps=1)
            steps_in_another_thread(running, 3)
            assert running.recorder._open.window.is_running
            running.step_until("done")
            assert not torch.autograd._profiler_enabled()
    finally:
        undo()


def test_a_window_without_a_next_step_is_cut_off():
    longest_s, recording.MAX_WINDOW_S = recording.MAX_WINDOW_S, 0.3
    try:
        with program() as running:
            running.step()
            running.ask(num_steps=100_000)
            end_s = time.monotonic() + LIMIT_S
            while running.state()["state"] in (None, "waiting"):
                assert time.monotonic() < end_s
                running.step()
                time.sleep(0.002)
            while running.state()["state"] != "done":
                assert time.monotonic() < end_s, running.state()
                time.sleep(0.02)
            assert "cut off" in running.state()["words"]
    finally:
        recording.MAX_WINDOW_S = longest_s


def test_a_child_that_is_forked_within_a_window_records_nothing():
    with program() as running:
        running.step()
        running.ask(num_steps=100_000)
        running.step_until("recording")
        child = os.fork()
        if child == 0:
            try:
                running.recorder.begin_anew()
                value, before = torch.ones(2), resident_bytes()
                for _ in range(200_000):
                    value + 1
                os._exit(0 if resident_bytes() - before < 20_000_000 and not running.step() else 3)
            finally:
                os._exit(4)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0


def test_a_window_by_time_ends_at_its_limit_of_steps():
    most, recording.MAX_TIMED_STEPS = recording.MAX_TIMED_STEPS, 4
    try:
        with program() as running:
            running.step()
            running.ask(num_steps=0, duration_s=1000.0)
            facts = running.step_until("done")
            assert len(facts["bounds_ns"]) == 5
            assert facts["words"] == "cut off after 4 steps"
    finally:
        recording.MAX_TIMED_STEPS = most


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_program_that_can_start_no_thread_at_its_end_writes_its_trace_itself():
    with program() as running:
        running.step()
        running.ask(num_steps=100_000)
        running.step_until("recording")
        original = threading.Thread.start

        def start(thread):
            raise RuntimeError("can't create new thread at interpreter shutdown")

        threading.Thread.start = start
        try:
            running.recorder.close()
        finally:
            threading.Thread.start = original
        assert running.state()["state"] == "done"
        assert running.trace()["traceEvents"]


def test_a_failing_profiler_is_reported_and_the_training_continues():
    original = torch.profiler.profile

    def broken(**options):
        raise RuntimeError("no counters left")

    with program() as running:
        running.step()
        torch.profiler.profile = broken
        try:
            running.ask()
            facts = running.step_until("failed")
        finally:
            torch.profiler.profile = original
        assert "no counters left" in facts["words"]
        running.step()


def test_a_defect_of_the_recorder_ends_the_recorder_and_not_the_program():
    with program() as running:
        running.step()
        running.recorder._is_wanted = True
        running.recorder._requests.take_due = None
        running.step()
        assert running.recorder._is_broken
        running.step()


def test_ranks_outside_of_the_request_write_no_answer():
    with program() as running:
        running.step()
        running.ask(ranks=(3, 4))
        end_s = time.monotonic() + LIMIT_S
        while 1 not in running.recorder._requests._seen or running.recorder._requests.has_any:
            assert time.monotonic() < end_s
            running.step()
            time.sleep(0.01)
        assert running.state()["state"] is None
        assert not running.recorder._is_wanted or not running.step()


def test_a_request_without_a_step_in_time_fails():
    with program() as running:
        running.step()
        running.ask(give_up_at=time.time() + 2)
        end_s = time.monotonic() + LIMIT_S
        while running.state()["state"] != "failed":
            assert time.monotonic() < end_s, running.state()
            time.sleep(0.05)
        assert "no step began in time" in running.state()["words"]


def test_the_hook_is_installed_once_counts_steps_and_survives_forks():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLARY_PROFILES_FOLDER"] = folder
        try:
            assert recorder_module.install()
            assert recorder_module.install()
        finally:
            del os.environ["CLARY_PROFILES_FOLDER"]
        installed = recorder_module._recorder
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = installed._steps.num_steps
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert installed._steps.num_steps == before + 3
        child = os.fork()
        if child == 0:
            # A forked rank: its first step starts its thread, and a request reaches it.
            try:
                end_s = time.monotonic() + LIMIT_S
                os.environ["RANK"] = "1"
                leave(Path(folder), ProfileRequest(number=7, num_steps=1, ranks=(1,)))
                place = Path(folder) / "out/7/rank-1.json"
                while time.monotonic() < end_s:
                    optimizer.step()
                    time.sleep(0.005)
                    if place.exists() and json.loads(place.read_text())["state"] == "done":
                        os._exit(0)
                os._exit(3)
            finally:
                os._exit(4)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert json.loads((Path(folder) / "out/7/rank-1.json").read_text())["pid"] == child
        installed.close()


def test_a_step_costs_little_without_a_request():
    with program() as running:
        optimizer = running.optimizers[0]
        best_s = 1.0
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(1000):
                running.recorder.on_step(optimizer)
            best_s = min(best_s, (time.perf_counter() - began) / 1000)
        sys.stderr.write(f"a step costs {best_s * 1e9:.0f} ns\n")
        assert best_s < 50e-6, "a hundred times what it takes on a quiet machine"
