"""Observations of a file of the checkpoint folder, as plain data. Times are monotonic seconds."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from clary.contract.checkpoint_evidence import Evidence

# A process that one of these ends has not chosen to; SIGTERM and the like also end helpers that have done their work.
_SUDDEN_SIGNALS = frozenset(
    {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGXFSZ}
)


class Hold(Enum):
    """Whether something can still write to a file without opening it."""

    FREE = "free"  # no descriptor and no memory map of anybody on this machine
    HELD = "held"  # whatever for: one that only appends may be in the midst of a shard
    UNKNOWN = "unknown"  # unknown, as on a file system that other machines share


class ProgramEnd(Enum):
    """How the program has ended, once nothing of it runs."""

    FINISHED = "finished"  # every process of it that the agent started ended with 0
    BROKEN = "broken"  # it was killed, or failed


@dataclass(frozen=True, kw_only=True)
class Close:
    """A close of the last writer: it happened between two moments."""

    after_s: float
    before_s: float


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of a process of the program that is not known to be a good one.

    Attributes:
        alive_s: when it was last seen alive, with its end not begun.
        noticed_s: when it was seen to be gone.
        wait_status: as wait(2) gives it; None if the kernel does not tell.
    """

    pid: int
    name: str
    alive_s: float
    noticed_s: float
    wait_status: int | None

    @property
    def is_sudden(self) -> bool:
        """Whether it is known that something ended the process that it cannot have chosen."""
        return self.wait_status is not None and self.wait_status & 0x7F in _SUDDEN_SIGNALS

    @property
    def words(self) -> str:
        """How it ended."""
        who = f"process {self.pid} ({self.name})"
        if self.wait_status is None:
            return f"{who} ended"
        number = self.wait_status & 0x7F
        return f"{who} was ended by signal {number}" if number else f"{who} ended with {self.wait_status >> 8}"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All that is known of a file in one state: the same inode, size and times."""

    hold: Hold
    is_log: bool = False  # whether its name is one of a log
    since_s: float  # the first moment at which it was seen in this state
    holders: tuple[str, ...] = ()  # processes that have it open, in words
    writers: frozenset[int] = frozenset()  # pids that were seen to have this inode open for writing
    is_named: bool = False  # whether it was renamed or linked into place and not written to since
    close: Close | None = None  # None: it was not seen to be closed, only that it is
    was_disk_full: bool = False  # whether there was no room left while it was written
    marker: str = ""  # path of the marker that was written after it
    is_marker_seen: bool = False  # whether it was seen which of the two came last; else only their times tell
    longest_pause_s: float = 0.0  # that any writer of the folder was seen to make in the midst of a file


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a file may be taken as whole.

    Attributes:
        evidence: what says so; where it may not be taken yet, what is nearest to it.
        reason: why not, in words.
        is_blocking: whether it is known to be unfinished, so that no time alone makes it, or its group, whole.
        is_torn: whether its writer is gone without having finished it.
    """

    is_whole: bool
    evidence: Evidence = Evidence.UNKNOWN
    reason: str = ""
    rested_s: float = 0.0
    is_blocking: bool = False
    is_torn: bool = False
