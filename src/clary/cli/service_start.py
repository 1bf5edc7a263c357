"""Waits until the service that `clary up` has started is ready, as long as its log grows, and prints its progress.

Where: `up`. The service itself limits its waits, above all the wait for the object store, and ends when a wait fails.
So `up` gives up only on a service that is silent, or that takes longer than two starts of the store may take: the
service first tries the store that an earlier service left, then starts another store.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from clary.base.errors import ClaryError, Fault
from clary.base.limited_runs import end_process
from clary.control.objects.start_patience import LONGEST_START_S, StartPatience, signs_of

SILENCE_S = 60.0  # longer than the service waits for a silent store and ends it: the service reports its failure first
LONGEST_WAIT_S = 2 * LONGEST_START_S + SILENCE_S
NOTE_INTERVAL_S = 10.0
POLL_S = 0.05
END_GRACE_S = 20.0  # a service that is stopped while it starts first ends its object store
MAX_LINE_BYTES = 400  # bytes shown of the end of the log's last line

Ready = TypeVar("Ready")


def wait_until_ready(
    process: subprocess.Popen[bytes],
    *,
    log: Path,
    find_ready: Callable[[], Ready | None],
    say: Callable[[str], None],
    ending: signal.Signals = signal.SIGTERM,
) -> Ready:
    """Return the first result of `find_ready` other than None; end the service on any earlier exception.

    Args:
        process: the service.
        log: file that this service alone writes to.
        find_ready: polled; returns None until the service is ready.
        say: called with a sentence on progress from time to time.
        ending: signal that ends the service; `HAND_OVER` if it may have taken over running jobs, which then run on.
    Raises: ClaryError: the service ended, or was given up.
    """
    try:
        return _wait(process, log, find_ready, say)
    except BaseException:
        _end(process, ending, say)
        raise


def _wait(
    process: subprocess.Popen[bytes], log: Path, find_ready: Callable[[], Ready | None], say: Callable[[str], None]
) -> Ready:
    began_s = time.monotonic()
    old_bytes = log.stat().st_size  # lines of earlier services
    patience = StartPatience(began_s, silence_s=SILENCE_S, longest_s=LONGEST_WAIT_S)
    next_note_s = began_s + NOTE_INTERVAL_S
    while (exit_code := process.poll()) is None:
        found = find_ready()
        if found is not None:
            return found
        now_s = time.monotonic()
        if (why := patience.why_over(now_s, signs_of(process.pid, log))) is not None:
            raise ClaryError(
                f"the service did not answer within {now_s - began_s:.0f} s and is ended: {why}",
                fault=Fault.INFRASTRUCTURE,
            )
        if now_s >= next_note_s:
            next_note_s = now_s + NOTE_INTERVAL_S
            say(
                f"the service has been starting for {now_s - began_s:.0f} s; it said last: {_last_line(log, old_bytes)}"
            )
        time.sleep(POLL_S)
    raise ClaryError(f"the service ended after {time.monotonic() - began_s:.1f} s with exit code {exit_code}")


def _end(process: subprocess.Popen[bytes], ending: signal.Signals, say: Callable[[str], None]) -> None:
    process.send_signal(ending)
    try:
        process.wait(END_GRACE_S)
    except subprocess.TimeoutExpired:
        say(f"the service did not end within {END_GRACE_S:.0f} s and is killed")
        if not end_process(process):
            say(f"process {process.pid} hangs in the kernel and is left: it ends once its disk answers")


def _last_line(log: Path, old_bytes: int) -> str:
    with log.open("rb") as file:
        file.seek(max(old_bytes, file.seek(0, os.SEEK_END) - 2 * MAX_LINE_BYTES))
        lines = file.read().splitlines()
    return lines[-1][-MAX_LINE_BYTES:].decode("utf-8", "replace") if lines else "nothing"
