"""Observations of a file of the checkpoint folder, as plain data. Times are monotonic seconds."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from clary.contract.checkpoint_evidence import Evidence

# Signals that end a process against its will; SIGTERM and the like also end helpers that have done their work.
_SUDDEN_SIGNALS = frozenset(
    {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGXFSZ}
)


class Hold(Enum):
    """Whether a process can still write to a file without opening it."""

    FREE = "free"  # no process on this machine has a descriptor or memory map for writing
    HELD = "held"  # also for appending alone: the writer may be in the midst of a shard
    UNKNOWN = "unknown"  # unknown, as on a file system that other machines share


class ProgramEnd(Enum):
    """How the program has ended, once all its processes have ended."""

    FINISHED = "finished"  # every process that the agent started ended with 0
    BROKEN = "broken"  # the program was killed, or failed


@dataclass(frozen=True, kw_only=True)
class Close:
    """A close of the last writer: it happened between two moments."""

    after_s: float
    before_s: float


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of a process of the program that is not known to have ended with 0.

    Attributes:
        alive_s: when it was last seen alive and not yet ending.
        noticed_s: when its end was noticed.
        wait_status: as wait(2) gives it; None if the kernel does not have it.
    """

    pid: int
    name: str
    alive_s: float
    noticed_s: float
    wait_status: int | None

    @property
    def is_sudden(self) -> bool:
        """Whether the process is known to have been ended by a signal against its will."""
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
    close: Close | None = None  # None: its closing was not seen
    was_disk_full: bool = False  # whether the disk was full while it was written
    marker: str = ""  # path of the marker that was written after it
    is_marker_seen: bool = False  # whether the marker was seen to come last; otherwise only times show it
    longest_pause_s: float = 0.0  # longest pause of any writer of the folder within a file


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a file may be taken as whole.

    Attributes:
        evidence: the evidence that it is whole; if it may not be taken yet, the nearest evidence.
        reason: why it may not be taken, in words.
        is_blocking: whether it is known to be unfinished; then rest alone never makes it, or its group, whole.
        is_torn: whether its writer has ended without finishing it.
    """

    is_whole: bool
    evidence: Evidence = Evidence.UNKNOWN
    reason: str = ""
    rested_s: float = 0.0
    is_blocking: bool = False
    is_torn: bool = False
