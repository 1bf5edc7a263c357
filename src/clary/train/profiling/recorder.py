"""Recorder of profiling windows: polls for requests, and starts and ends windows at the program's steps.

Where: `install` hooks it into torch. The program's thread only counts steps until there is a request; separate threads
poll the folder and write traces. Requests wait in `waiting_requests`; a window that has begun is a `recording`. An
error here must not fail a program: the rank's answer or the log reports the error, and the recorder may stop.

[Note: two threads]
`_requests` and `_open` change only under `_lock`. `_is_wanted` is a hint that the program's thread reads without the
lock.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from clary.contract.deep_profiles import FOLDER_VARIABLE, RankProfile, RankState
from clary.train import graph_captures
from clary.train.profiling.rank_files import RankFiles
from clary.train.profiling.ranks import own_rank
from clary.train.profiling.recording import Ending, Recording
from clary.train.profiling.step_counter import StepCounter
from clary.train.profiling.waiting_requests import Waiting, WaitingRequests
from clary.train.profiling.window import OtherProfiler, Window, is_captured

LOOK_S = 0.5  # seconds between checks of the folder
_END_S = 5.0  # at the program's end: timeout for its GPU, then for traces being written

_log = logging.getLogger("clary.profiling")
_recorder: Recorder | None = None


def install() -> bool:
    """Start a recorder if the environment names a folder; return whether one runs. A second call does nothing."""
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

    count_step._torchdynamo_disable = True  # type: ignore[attr-defined]  # not compiled by torch.compile
    hook(count_step)
    _recorder.start()
    atexit.register(_recorder.close)
    os.register_at_fork(after_in_child=_recorder.begin_anew)
    return True


class Recorder:
    """The windows of one process; see `install`.

    Args:
        folder: folder of requests.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps = StepCounter()
        self._lock = threading.RLock()
        self._is_wanted = False  # whether the next step has work to do
        self._is_broken = False
        self._requests = WaitingRequests(folder, steps=self._steps, tell=self._tell)
        self._open: Recording | None = None
        self._writers: list[threading.Thread] = []
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read existing requests, then start the thread."""
        self._look(None)
        self._thread = threading.Thread(target=self._run, name="clary-profiling", daemon=True)
        self._thread.start()

    def begin_anew(self) -> None:
        """Reset in a forked child, which has no thread and does not answer for its parent's windows."""
        self._lock = threading.RLock()
        self._ending = threading.Event()
        if self._open is not None and self._open.window.is_running:
            self._open.window.forget()
            self._is_broken = True  # torch cannot record in this process
        self._requests.forget()
        self._open, self._writers, self._thread = None, [], None
        self._is_wanted = True  # the child's first step starts the thread; workers of data loaders make no step

    def on_step(self, optimizer: object) -> None:
        """Count a step of an optimizer, in the program's thread."""
        if self._steps.is_boundary(optimizer) and self._is_wanted and not self._is_broken:
            try:
                if not is_captured():  # a step in a graph capture is not computed
                    self._on_boundary()
            except Exception as error:  # noqa: BLE001 - a profile must not fail the program
                self._break_off(error)

    def close(self) -> None:
        """End the running window at the end of the program, and wait up to `_END_S` for traces being written."""
        self._ending.set()
        if not self._lock.acquire(timeout=_END_S):  # another thread is ending a window, whose GPU may hang
            return
        try:
            if self._open is not None and self._open.may_end:
                self._end_with_program(self._open)
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
            if run is not None and not run.by_time and run.may_end:
                run.count_step()
                if (ending := run.ending_at_step()) is not None:
                    self._end_window(run, ending)
            while self._open is None and (due := self._requests.take_due()) is not None:
                self._begin_window(due, by_time=False)
            self._is_wanted = self._requests.has_any or self._open is not None

    def _begin_window(self, waiting: Waiting, *, by_time: bool) -> None:
        request, files = waiting.request, waiting.files
        window = Window(on_other=self._give_way, all_threads=by_time)
        try:
            window.start()
        except OtherProfiler as error:
            self._tell(files, RankState.REFUSED, str(error))
            return
        except Exception as error:  # noqa: BLE001 - whatever torch says of it
            self._tell(files, RankState.FAILED, f"torch.profiler did not start: {error!r}")
            return
        self._open = Recording(request, files, window, first_step=self._steps.num_steps, by_time=by_time)
        self._tell(files, RankState.RECORDING, "")

    def _end_with_program(self, run: Recording) -> None:
        try:
            has_settled = run.window.has_settled(_END_S)
        except Exception:  # noqa: BLE001 - a GPU in trouble, which may be why the program ends
            has_settled = False
        words = "the program ended before the window did"
        if not has_settled:  # otherwise torch waits for the GPU, and the program may never end
            run.window.wait_for_no_gpu()
            words += ", and while its GPU was at work or in trouble"
        self._end_window(run, Ending(words, now=True))

    def _end_window(self, run: Recording, ending: Ending) -> None:
        """Stop recording and write the trace on a thread; do nothing if that would break a graph capture.

        Args:
            ending: with `now`, the window ends even during a capture, without a wait for the GPU.
        """
        if not run.window.has_gpu:  # `stop` does not wait, so the gate is not needed
            self._stop_and_write(run, ending.words)
            return
        with graph_captures.gate.between(0.0) as is_free:
            if ending.now and not is_free:
                run.window.wait_for_no_gpu()
            if is_free or ending.now:
                self._stop_and_write(run, ending.words)

    def _stop_and_write(self, run: Recording, words: str) -> None:
        try:
            profile = run.stop(words, step=self._steps.num_steps)
        except Exception as error:  # noqa: BLE001 - as above
            self._open = None
            self._tell(run.files, RankState.FAILED, f"torch.profiler did not stop: {error!r}")
            return
        self._put_down(run.files, profile)
        writer = threading.Thread(target=self._write, args=(run, profile), name="clary-trace", daemon=True)
        try:
            writer.start()
        except RuntimeError:  # since Python 3.12, a program that is shutting down cannot start threads
            self._write(run, profile)
            return
        self._writers = [thread for thread in self._writers if thread.is_alive()] + [writer]

    def _write(self, run: Recording, profile: RankProfile) -> None:
        try:
            self._put_down(run.files, run.write(profile))
        except Exception as error:  # noqa: BLE001 - as above
            self._tell(run.files, RankState.FAILED, f"the trace could not be written: {error!r}")
        finally:
            with self._lock:
                self._open = None
                self._is_wanted = self._requests.has_any

    def _give_way(self) -> None:
        """End the window, because the program starts its own profiler."""
        with self._lock:
            if self._open is not None and self._open.may_end:
                words = "cut off: the program has started torch.profiler itself"
                self._end_window(self._open, Ending(words, now=True))

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
        """Read requests that have appeared in the folder since `stamp`; return the folder's new stamp."""
        try:
            now = self._folder.stat().st_mtime_ns
        except OSError:
            return None
        # A change within the timestamp granularity of the last check would go unnoticed: check until the stamp is 2 s
        # old.
        if now == stamp:
            return stamp
        with self._lock:
            for cancelled in self._requests.take_up():
                if self._open is not None and self._open.request.number == cancelled.number:
                    self._open.request = cancelled  # the window ends at the next step or, if by time, at the next check
            self._is_wanted = self._is_wanted or self._requests.has_any
        return now if time.time_ns() - now > 2_000_000_000 else None

    def _keep_time(self) -> None:
        """Do the periodic work between steps: answer requests, expire them, record by time."""
        self._requests.answer()
        while self._open is None and (late := self._requests.take_late()) is not None:
            self._begin_window(late, by_time=True)
        run = self._open
        if run is None or not run.may_end:
            return
        if (ending := run.ending_between_steps()) is not None:
            if ending.now:
                run.window.wait_for_no_gpu()  # a wait here would hold the lock
            self._end_window(run, ending)

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
