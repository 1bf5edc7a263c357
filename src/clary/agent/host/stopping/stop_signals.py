"""SIGTERM to a program: at once to almost every process, later to processes that read others' last output.

Where: the keeper uses it when the agent ends a program. `stop_policy` decides when each process gets the signal. If a
scheduler outside has already sent SIGTERM to every process of the host, no process gets it again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

from clary.agent.host.stopping.census import Census
from clary.agent.host.stopping.process_views import read_views
from clary.agent.host.stopping.stop_policy import decide_deferrals
from clary.base.processes import read_entry

POLL_S = 0.05  # between two checks whether the writers have ended
DRAIN_S = 1.0  # for a reader to forward the rest of its pipe after the last writer has ended

_Identity = tuple[int, int]  # pid and start time, so that a reused pid is never signalled


@dataclass
class _Late:
    """One process whose signal is deferred."""

    process: _Identity
    until: frozenset[_Identity]
    drained_at_s: float | None = None  # monotonic time; None while one of `until` lives


class StopSignals:
    """Sends SIGTERM to every process of a program, each exactly once.

    Args:
        census: finds and signals the program's processes.
    """

    def __init__(self, census: Census) -> None:
        self._census = census
        self._late: list[_Late] = []
        self._was_heard = False

    @property
    def poll_s(self) -> float | None:
        """Seconds until the next call of `send_late`; None if no signal is deferred."""
        return POLL_S if self._late else None

    @property
    def was_heard(self) -> bool:
        """Whether the program has received SIGTERM from outside."""
        return self._was_heard

    def hear(self) -> None:
        """Record that every process got SIGTERM from outside: `send` and `send_late` then send no signals.

        Processes that start later get no signal either: signal handlers start them to clean up.
        """
        self._was_heard = True
        self._late = []

    def send(self) -> int:
        """Signal every process except deferred ones, and record these; return the number of live processes."""
        if self._was_heard:
            return self._census.signal_all(0)
        live = self._census.live()
        deferrals = decide_deferrals(read_views(live))

        def identity(pid: int) -> _Identity:
            return pid, live[pid].started_at

        count = self._census.signal_all(signal.SIGTERM, spare=deferrals.keys())
        self._late = [
            _Late(identity(pid), frozenset(map(identity, deferral.until)))
            for pid, deferral in deferrals.items()
            if deferral.until is not None
        ]
        return count

    def send_late(self) -> None:
        """Signal deferred processes that are due."""
        now_s = time.monotonic()
        waiting = []
        for late in self._late:
            if late.drained_at_s is None and not any(map(_is_alive, late.until)):
                late.drained_at_s = now_s
            if late.drained_at_s is None or now_s < late.drained_at_s + DRAIN_S:
                waiting.append(late)
            elif _is_alive(late.process):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(late.process[0], signal.SIGTERM)
        self._late = [late for late in waiting if _is_alive(late.process)]


def _is_alive(process: _Identity) -> bool:
    pid, started_at = process
    entry = read_entry(pid)
    return entry is not None and entry.started_at == started_at and not entry.has_ended
