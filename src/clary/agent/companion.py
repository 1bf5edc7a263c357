"""The life cycle of companions of a host's program: parts of the agent that measure it, read its files or watch it.

Where: `supervisor.program_companions` calls every companion's method at each step:

    prepare --> [the program starts] --> begin --> [its processes are gone] --> ended --> flush, wait_flushed --> close

`abort` may be called at any time before `close`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol


class WatchedProgram(Protocol):
    """The processes of the program, as companions see them."""

    @property
    def init_pid(self) -> int | None:
        """Pid of the program's first process on this machine; None if unknown."""

    @property
    def num_processes(self) -> int:
        """Number of processes that were started."""

    def ranks_by_pid(self) -> Mapping[int, int]:
        """Return pid -> rank, for running processes that the agent itself has started as ranks."""


class Companion:
    """Base of companions: its methods do nothing until a subclass overrides them.

    The supervisor's thread calls them. No method may raise: an error would end the host's work.
    """

    def prepare(self, ml_folder: Path) -> None:
        """Prepare before the program starts; the host's `/opt/ml` is complete."""

    def begin(self, program: WatchedProgram, ml_folder: Path) -> None:
        """Start with a program that has just been started."""

    def ended(self) -> None:
        """Act once every process of the program has ended."""

    def flush(self, limit_s: float) -> None:
        """Start to send all data measured so far, within `limit_s` unless the companion has a limit of its own."""

    def wait_flushed(self, is_vain: Callable[[], bool]) -> None:
        """Wait, after `flush`, until all data is sent, the time limit has passed, or `is_vain` returns True."""

    def abort(self) -> None:
        """Abort all work; a second call does nothing."""

    def close(self, timeout_s: float) -> bool:
        """Free all resources, after `abort`; return whether the threads have ended within `timeout_s`."""
        return True
