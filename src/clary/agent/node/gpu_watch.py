"""The GPUs of a box, from an nvidia-smi that runs beside the daemon's only thread.

Where: `daemon` calls `look` in every round. A driver that has to start takes seconds per GPU, and a driver that hangs
never answers; the daemon must go on asking the service meanwhile, which otherwise gives up the box's host.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence

from clary.agent.node.machine import GPU_COMMAND, read_uuids
from clary.base.limited_runs import end_process
from clary.base.passing_errors import is_passing

INTERVAL_S = 60.0  # between two queries: a driver may be loaded, or lose a GPU, while the daemon runs
RETRY_S = 15.0  # after a query that failed
MAX_FAILURES = 2  # in a row; then the box has no GPUs
LIMIT_S = 60.0  # of one query; a driver without an open client initializes each GPU, for up to 3 s per GPU
_POLL_S = 0.02
_READ_BYTES = 64 * 1024  # at least the capacity of a pipe, so that the tool never waits for a reader


class GpuWatch:
    """Keeps the UUIDs of the GPUs.

    Args:
        command: nvidia-smi with its arguments.
    """

    def __init__(self, command: Sequence[str] = GPU_COMMAND) -> None:
        self._command = command
        self._tool: subprocess.Popen[bytes] | None = None
        self._started_s = float("-inf")
        self._is_killed = False
        self._uuids: tuple[str, ...] | None = None
        self._num_failures = 0
        self._interval_s = INTERVAL_S
        self._refusal = ""  # why the last query could not begin

    @property
    def uuids(self) -> tuple[str, ...] | None:
        """The GPUs of the last answer; None before the first one, empty after `MAX_FAILURES` failures in a row."""
        return self._uuids

    @property
    def children(self) -> tuple[int, ...]:
        """The process id of the tool while it runs: it belongs to no lease."""
        return () if self._tool is None else (self._tool.pid,)

    def look(self) -> str:
        """Begin a query if it is due, and take the answer of one that has ended; return new trouble as a sentence.

        A late tool is killed, but not waited for: if the driver hangs, it ends when the driver answers again. Until
        then no other is started, and the GPUs of the last answer stay; without one there are none.
        """
        now_s = time.monotonic()
        if self._tool is not None:
            code = self._tool.poll()
            if code is not None:
                self._take(code)
            elif not self._is_killed and now_s - self._started_s > LIMIT_S:
                self._tool.kill()
                self._is_killed = True
                if self._uuids is None:
                    self._uuids = ()  # a driver that hangs from the beginning offers nothing until it answers
                return f"nvidia-smi (process {self._tool.pid}) has not answered for {LIMIT_S:g} s: the driver hangs"
        if self._tool is None and now_s - self._started_s > self._interval_s:
            self._started_s, self._is_killed, self._interval_s = now_s, False, INTERVAL_S
            try:
                self._tool = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
            except FileNotFoundError:  # no driver is installed, or not yet
                if self._uuids is None:
                    self._uuids = ()
                self._note_failure()
            except OSError as error:
                return self._note_refusal(error)
            self._refusal = ""
        return ""

    def _note_refusal(self, error: OSError) -> str:
        """Count a query that could not begin, unless this says nothing about the driver; return new trouble."""
        if is_passing(error):
            self._interval_s = RETRY_S
        else:
            self._note_failure()
        words = f"nvidia-smi cannot be started: {error}; it is tried again"
        known, self._refusal = self._refusal, words
        return "" if words == known else words

    def _note_failure(self) -> None:
        """Count a query without an answer: a driver may refuse one while it is loaded, or resets a GPU."""
        self._num_failures += 1
        if self._num_failures >= MAX_FAILURES:
            self._uuids = ()
        if self._uuids != ():
            self._interval_s = RETRY_S

    def await_first(self, limit_s: float) -> None:
        """Begin the first query, and wait a short time for its answer."""
        deadline_s = time.monotonic() + limit_s
        self.look()
        while self._tool is not None and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            self.look()

    def close(self) -> None:
        """Kill the tool if it runs, and wait a short time for its end."""
        tool, self._tool = self._tool, None
        if tool is not None:
            end_process(tool)

    def _take(self, code: int) -> None:
        tool, self._tool = self._tool, None
        assert tool is not None
        assert tool.stdout is not None
        with tool.stdout as pipe:
            os.set_blocking(pipe.fileno(), False)  # a child of the tool may hold the pipe open
            listing = b""
            with contextlib.suppress(BlockingIOError):
                listing = os.read(pipe.fileno(), _READ_BYTES)
        if self._is_killed:
            return
        if code != 0:
            self._note_failure()
            return
        self._uuids, self._num_failures = read_uuids(listing.decode("utf-8", "replace")), 0
