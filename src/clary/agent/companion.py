"""The life cycle of companions of a host's program: parts of the agent that measure it, read its files or watch it.

Where: `supervisor.program_companions` calls every companion at each step:

    prepare --> [the program starts] --> begin --> [its processes are gone] --> ended --> flush, wait_flushed --> close

`abort` may come at any time before `close`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol


class WatchedProgram(Protocol):
    """The processes of the program, as companions see them."""

    @property
    def init_pid(self) -> int | None:
        """First process of the program, as this machine numbers it; None if unknown."""

    @property
    def num_processes(self) -> int:
        """Processes that were started."""

    def ranks_by_pid(self) -> Mapping[int, int]:
        """Return process -> rank of the running ranks; without processes that the agent has not started as ranks."""


class Companion:
    """Base of companions: its methods do nothing until a subclass overrides them.

    The supervisor's thread calls them. No method may raise: an error would end the host's work.
    """

    def prepare(self, ml_folder: Path) -> None:
        """Get ready before the program starts; the host's `/opt/ml` is built."""

    def begin(self, program: WatchedProgram, ml_folder: Path) -> None:
        """Begin with a program that has just been started."""

    def ended(self) -> None:
        """Act on the end of every process of the program."""

    def flush(self, limit_s: float) -> None:
        """Begin to send everything measured so far, within `limit_s` where the companion has no limit of its own."""

    def wait_flushed(self, is_vain: Callable[[], bool]) -> None:
        """Wait, after `flush`, until everything is sent, the time is up, or `is_vain` returns true."""

    def abort(self) -> None:
        """Abort all work; a second call does nothing."""

    def close(self, timeout_s: float) -> bool:
        """Free all resources, after `abort`; return whether the threads have ended within `timeout_s`."""
        return True
