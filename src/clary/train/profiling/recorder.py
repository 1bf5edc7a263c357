"""Looks for requests, and has windows begin and end at steps of the program.

Where: `install` hangs it into torch. The program's thread only counts steps until something is asked for; a thread of
its own looks at the folder and writes traces. Nothing here may fail a program: what goes wrong is said in the rank's
answer, and the recorder does no more.

[Note: two threads]
`_waiting` and `_open` change under `_lock` alone. `_is_wanted` is a hint that the program's thread reads without it.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from clary.contract.deep_profiles import (
    FOLDER_VARIABLE,
    MAX_TIMED_STEPS,
    MAX_WINDOW_S,
    ProfileRequest,
    RankProfile,
    RankState,
)
from clary.train import graph_captures
from clary.train.profiling.rank_files import RankFiles, boot_id, read_requests
from clary.train.profiling.ranks import may_be_rank, own_rank
from clary.train.profiling.step_counter import StepCounter
from clary.train.profiling.window import OtherProfiler, Window, clock_facts, is_captured

LOOK_S = 0.5  # from one look at the folder to the next
NO_STEPS_S = 20.0  # after which a program that has made no step is recorded by time: it may be beginning still
NO_STEPS_TIMED_S = 5.0  # the same where a time was asked for
_END_S = 5.0  # for a trace that is being written when the program ends, and before that for its GPU
_LEFT_OUT = "without its GPU, which only a window of steps can record"

_log = logging.getLogger("clary.profiling")
_recorder: Recorder | None = None


def install() -> bool:
    """Have windows taken where a folder for them is named; return whether one is. Harmless when repeated."""
    global _recorder
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder or _recorder is not None:
        return _recorder is not None
    hook = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
    if hook is None:
        return False
    _recorder = Recorder(Path(folder))
    on_step = _recorder.on_step

    def count_step(optimizer: object, args: Any, options: Any) -> None:
        on_step(optimizer)

    count_step._torchdynamo_disable = True  # type: ignore[attr-defined]  # not a part of what torch.compile compiles
    hook(count_step)
    _recorder.start()
    atexit.register(_recorder.close)
    os.register_at_fork(after_in_child=_recorder.begin_anew)
    return True


class Open:
    """A window that runs or is being written, with what is known of it."""

    def __init__(self, request: ProfileRequest, files: RankFiles, window: Window, *, first_step: int) -> None:
        self.request, self.files, self.window, self.first_step = request, files, window, first_step
        self.bounds_ns = [time.time_ns()]
        self.began_s = time.monotonic()
        self.by_time = False


class Recorder:
    """The windows of one process; see `install`.

    Args:
        folder: where requests appear.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps = StepCounter()
        self._lock = threading.RLock()
        self._is_wanted = False  # something to do at the next step
        self._is_broken = False
        self._seen: dict[int, ProfileRequest] = {}
        self._waiting: dict[int, tuple[ProfileRequest, RankFiles]] = {}
        self._open: Open | None = None
        self._writers: list[threading.Thread] = []
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look; a request that is there already is taken up before the program goes on."""
        self._look(None)
        self._thread = threading.Thread(target=self._run, name="clary-profiling", daemon=True)
        self._thread.start()

    def begin_anew(self) -> None:
        """Go on in a child that was forked: it has no thread, and answers for none of its parent's windows."""
        self._lock = threading.RLock()
        self._ending = threading.Event()
        if self._open is not None and self._open.window.is_running:
            self._open.window.forget()
            self._is_broken = True  # torch would record nothing here
        self._waiting, self._open, self._writers, self._thread = {}, None, [], None
        self._is_wanted = True  # the thread begins with the child's first step: a worker of a data loader makes none

    def on_step(self, optimizer: object) -> None:
        """Count what an optimizer has done, in the program's thread."""
        if self._steps.is_boundary(optimizer) and self._is_wanted and not self._is_broken:
            try:
                if not is_captured():  # put into a graph, not computed
                    self._on_boundary()
            except Exception as error:  # noqa: BLE001 - a profile must not fail the program
                self._break_off(error)

    def close(self) -> None:
        """End what runs, for the end of the program; what is being written is waited for, for `_END_S`."""
        self._ending.set()
        if not self._lock.acquire(timeout=_END_S):  # a window is ended at this moment, and its GPU may hang
            return
        try:
            if self._runs_and_may_stop(self._open):
                self._end_with_program()
        finally:
            self._lock.release()
        end_s = time.monotonic() + _END_S
        for thread in list(self._writers):
            thread.join(max(0.0, end_s - time.monotonic()))

    def _on_boundary(self) -> None:
        with self._lock:
            if self._thread is None and not self._ending.is_set():
                self.start()
            run = self._open
            if run is not None and not run.by_time and self._runs_and_may_stop(run):
                run.bounds_ns.append(time.time_ns())
                self._end_if_done(run)
            for number, (request, files) in sorted(self._waiting.items()):
                if self._open is None and self._is_due(request) and (files.profile or self._claim(number, request)):
                    files = self._waiting.pop(number)[1]
                    self._begin_window(request, files, by_time=False)
            self._is_wanted = bool(self._waiting) or self._open is not None

    @staticmethod
    def _runs_and_may_stop(run: Open | None) -> bool:
        return run is not None and run.window.is_running and run.window.may_stop

    def _end_if_done(self, run: Open) -> None:
        """End a window of steps that has what was asked for, or lasts too long."""
        seconds = time.monotonic() - run.began_s
        asked = run.request
        is_whole = len(run.bounds_ns) > asked.num_steps if asked.num_steps else seconds >= asked.duration_s
        is_late = seconds > MAX_WINDOW_S  # kept open for a graph whose capture may never end
        if is_whole or asked.is_cancelled:
            self._end_window("", now=is_late)
        elif len(run.bounds_ns) > MAX_TIMED_STEPS:
            self._end_window(f"cut off after {MAX_TIMED_STEPS} steps", now=is_late)
        elif is_late:
            self._end_window(f"cut off after {MAX_WINDOW_S:g} s", now=True)

    def _is_due(self, request: ProfileRequest) -> bool:
        if request.start_step is not None and self._steps.num_steps < request.start_step:
            return False
        return time.time() >= request.start_at

    def _begin_window(self, request: ProfileRequest, files: RankFiles, *, by_time: bool) -> None:
        window = Window(on_other=self._give_way, all_threads=by_time)
        try:
            window.start()
        except OtherProfiler as error:
            self._tell(files, RankState.REFUSED, str(error))
            return
        except Exception as error:  # noqa: BLE001 - whatever torch says of it
            self._tell(files, RankState.FAILED, f"torch.profiler did not start: {error!r}")
            return
        self._open = Open(request, files, window, first_step=self._steps.num_steps)
        self._open.by_time = by_time
        self._tell(files, RankState.RECORDING, "")

    def _end_with_program(self) -> None:
        run = self._open
        assert run is not None
        try:
            has_settled = run.window.has_settled(_END_S)
        except Exception:  # noqa: BLE001 - a GPU in trouble, which may be why the program ends
            has_settled = False
        words = "the program ended before the window did"
        if not has_settled:  # torch would wait for the GPU, and the program would not end
            run.window.wait_for_no_gpu()
            words += ", and while its GPU was at work or in trouble"
        self._end_window(words, now=True)

    def _end_window(self, words: str, *, now: bool = False) -> None:
        """Stop recording and have the trace written aside; not yet where that would break a graph that is captured.

        Args:
            now: even then, without a wait for the GPU.
        """
        run = self._open
        assert run is not None
        if not run.window.has_gpu:  # nothing is waited for, and the gate is left alone
            self._stop_and_write(run, words)
            return
        with graph_captures.gate.between(0.0) as is_free:
            if now and not is_free:
                run.window.wait_for_no_gpu()
            if is_free or now:
                self._stop_and_write(run, words)

    def _stop_and_write(self, run: Open, words: str) -> None:
        if run.by_time:
            run.bounds_ns.append(time.time_ns())
        wall_ns, monotonic_ns = clock_facts()
        try:
            run.window.stop()
        except Exception as error:  # noqa: BLE001 - as above
            self._open = None
            self._tell(run.files, RankState.FAILED, f"torch.profiler did not stop: {error!r}")
            return
        profile = RankProfile(
            rank=0,
            state=RankState.WRITING,
            words="; ".join(filter(None, (words, _LEFT_OUT if run.window.leaves_out_gpu else ""))),
            pid=os.getpid(),
            host_name=socket.gethostname(),
            step=self._steps.num_steps,
            first_step=run.first_step,
            has_gpu=run.window.has_gpu,
            bounds_ns=tuple(run.bounds_ns),
            wall_ns=wall_ns,
            monotonic_ns=monotonic_ns,
            boot_id=boot_id(),
            by_time=run.by_time,
            framework=f"torch {sys.modules['torch'].__version__}",
        )
        self._put_down(run.files, profile)
        writer = threading.Thread(target=self._write, args=(run, profile), name="clary-trace", daemon=True)
        try:
            writer.start()
        except RuntimeError:  # a program that ends begins no threads any more, from Python 3.12 on
            self._write(run, profile)
            return
        self._writers = [thread for thread in self._writers if thread.is_alive()] + [writer]

    def _write(self, run: Open, profile: RankProfile) -> None:
        try:
            num_bytes = run.window.write(run.files.trace)
            self._put_down(run.files, replace(profile, state=RankState.DONE, trace_bytes=num_bytes))
        except Exception as error:  # noqa: BLE001 - as above
            self._tell(run.files, RankState.FAILED, f"the trace could not be written: {error!r}")
        finally:
            with self._lock:
                self._open = None
                self._is_wanted = bool(self._waiting)

    def _give_way(self) -> None:
        """End the window, because the program starts a profiler of its own."""
        with self._lock:
            if self._runs_and_may_stop(self._open):
                self._end_window("cut off: the program has started torch.profiler itself", now=True)

    def _run(self) -> None:
        stamp: int | None = None
        while not self._ending.wait(LOOK_S) and not self._is_broken:
            try:
                stamp = self._look(stamp)
                with self._lock:
                    self._keep_time()
            except Exception as error:  # noqa: BLE001 - as above
                self._break_off(error)

    def _look(self, stamp: int | None) -> int | None:
        """Take up what has appeared in the folder since `stamp`; return the folder's new one."""
        try:
            now = self._folder.stat().st_mtime_ns
        except OSError:
            return None
        # A change within the clock's tick of the last look would not show: look again until the folder has rested.
        if now == stamp:
            return stamp
        with self._lock:
            for request in read_requests(self._folder):
                if self._seen.get(request.number) != request:
                    self._take_up(request, is_new=request.number not in self._seen)
        return now if time.time_ns() - now > 2_000_000_000 else None

    def _take_up(self, request: ProfileRequest, *, is_new: bool) -> None:
        self._seen[request.number] = request
        run = self._open
        if request.is_cancelled:
            waiting = self._waiting.pop(request.number, None)
            if waiting is not None:
                self._tell(waiting[1], RankState.FAILED, "cancelled before it began")
            if run is not None and run.request.number == request.number:
                run.request = request  # ends at the next step
            return
        if not is_new or (request.give_up_at and time.time() > request.give_up_at):
            return
        self._waiting[request.number] = (request, RankFiles(self._folder, request.number, own_rank()))
        self._is_wanted = True

    def _keep_time(self) -> None:
        """Do what no step does: answer, give up, record by time."""
        now = time.time()
        for number, (request, files) in list(self._waiting.items()):
            if files.profile is None and not self._claim(number, request):
                continue
            files = self._waiting[number][1]
            if request.give_up_at and now > request.give_up_at:
                del self._waiting[number]
                self._tell(files, RankState.FAILED, "no step began in time: does the program still train?")
            elif self._is_for_time(request, now) and self._open is None:
                del self._waiting[number]
                self._begin_window(request, files, by_time=True)
        run = self._open
        if run is None or not self._runs_and_may_stop(run):
            return
        seconds = time.monotonic() - run.began_s
        if run.by_time:
            if seconds >= min(run.request.duration_s, MAX_WINDOW_S) or run.request.is_cancelled:
                self._end_window("")
        elif seconds > MAX_WINDOW_S:
            # a step that lasts, or the last one: what torch records meanwhile is kept in memory
            run.window.wait_for_no_gpu()  # which this thread would hold the lock for
            self._end_window(f"cut off after {MAX_WINDOW_S:g} s", now=True)

    def _claim(self, number: int, request: ProfileRequest) -> bool:
        """Answer for this rank if this process is one and is asked; return whether the window is still wanted."""
        is_training = self._steps.num_steps > 0
        is_late = _is_late(request, time.time())
        if not is_training and not (is_late and may_be_rank()):
            return False
        rank = own_rank()  # may have become known with the process group, after the request
        files = RankFiles(self._folder, number, rank)
        if (request.ranks and rank not in request.ranks) or not files.claim():
            del self._waiting[number]
            return False
        self._waiting[number] = (request, files)
        self._tell(files, RankState.WAITING, "")
        return True

    def _is_for_time(self, request: ProfileRequest, now: float) -> bool:
        return _is_late(request, now) and self._steps.num_steps == 0

    def _tell(self, files: RankFiles, state: RankState, words: str) -> None:
        run = self._open
        profile = RankProfile(
            rank=0,
            state=state,
            words=words,
            pid=os.getpid(),
            host_name=socket.gethostname(),
            step=self._steps.num_steps,
            first_step=run.first_step if run is not None else 0,
        )
        self._put_down(files, profile)

    def _put_down(self, files: RankFiles, profile: RankProfile) -> None:
        try:
            files.tell(profile)
        except OSError as error:
            _log.error("profile: rank %s cannot answer in %s: %s", own_rank(), self._folder, error)

    def _break_off(self, error: Exception) -> None:
        self._is_broken = True
        self._is_wanted = False
        _log.error("profile: none will be taken in this process, training goes on: %r", error, exc_info=error)


def _is_late(request: ProfileRequest, now: float) -> bool:
    """Whether steps have been waited for long enough; where one was named, it is waited for without an end."""
    wait_s = NO_STEPS_S if request.num_steps else NO_STEPS_TIMED_S
    return request.start_step is None and now > request.start_at + wait_s
