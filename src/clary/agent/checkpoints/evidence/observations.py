"""Observations of a file of the checkpoint folder, as plain data. Times are monotonic seconds."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from clary.contract.checkpoint_evidence import Evidence

# Signals that kill a process in mid-work; SIGTERM and similar signals also end helpers that have finished their work.
_SUDDEN_SIGNALS = frozenset(
    {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGXFSZ}
)


class Hold(Enum):
    """Whether a process can still write to a file without opening it."""

    FREE = "free"  # no process on this machine has a descriptor or memory map to write with
    HELD = "held"  # also if only for appending: the writer may be in the middle of a shard
    UNKNOWN = "unknown"  # cannot be determined, for example on a file system that other machines share


class ProgramEnd(Enum):
    """How the program has ended, once all its processes have ended."""

    FINISHED = "finished"  # every process that the agent started ended with 0
    BROKEN = "broken"  # the program was killed, or failed


@dataclass(frozen=True, kw_only=True)
class Close:
    """The close by a file's last writer: it happened between two moments."""

    after_s: float
    before_s: float


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of a process of the program that is not known to have ended with 0.

    Attributes:
        alive_s: when the process was last seen alive and not yet ending.
        noticed_s: when the end was noticed.
        wait_status: status in the form of wait(2); None if the kernel does not have it.
    """

    pid: int
    name: str
    alive_s: float
    noticed_s: float
    wait_status: int | None

    @property
    def is_sudden(self) -> bool:
        """Whether the process is known to have been killed by a signal in mid-work."""
        return self.wait_status is not None and self.wait_status & 0x7F in _SUDDEN_SIGNALS

    @property
    def words(self) -> str:
        """A phrase about how the process ended."""
        who = f"process {self.pid} ({self.name})"
        if self.wait_status is None:
            return f"{who} ended"
        number = self.wait_status & 0x7F
        return f"{who} was ended by signal {number}" if number else f"{who} ended with {self.wait_status >> 8}"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All observations of a file in one state: the same inode, size and times."""

    hold: Hold
    is_log: bool = False  # whether it is a log by its name
    since_s: float  # the first moment at which it was seen in this state
    holders: tuple[str, ...] = ()  # processes that have it open, in words
    writers: frozenset[int] = frozenset()  # pids that had this inode open for writing at some look (scan of the folder)
    is_named: bool = False  # whether it got its name by a rename or a link and was not written to since
    close: Close | None = None  # None: no close was observed
    was_disk_full: bool = False  # whether the disk was full while it was written
    marker: str = ""  # path of the marker that was written after it
    is_marker_seen: bool = False  # whether events or looks showed the marker last; otherwise only times
    longest_pause_s: float = 0.0  # longest pause between two writes to a file, of any writer in the folder


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a file may be taken as whole.

    Attributes:
        evidence: the evidence that the file is whole; if the file may not be taken yet, the best evidence so far.
        reason: why the file may not be taken, or why it has no evidence but time, as a clause.
        is_blocking: whether the file is known to be unfinished; then rest alone never makes it, or its group, whole.
        is_torn: whether the writer has ended without finishing the file.
    """

    is_whole: bool
    evidence: Evidence = Evidence.UNKNOWN
    reason: str = ""
    rested_s: float = 0.0
    is_blocking: bool = False
    is_torn: bool = False
