"""Watch that reports in the host's facts when the host's processes have connected to the master port.

Where: `program_companions` starts it with the program and closes it at the program's end; the watch's thread reads
/proc of the host's first process. `rendezvous_policy` decides whether they have connected; the ledger derives its part
`rendezvous` from the reported time.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from clary.agent.companion import Companion, WatchedProgram
from clary.agent.fact_board import FactBoard
from clary.agent.rendezvous.connection_table import change_mark, read_connections, socket_holders
from clary.agent.rendezvous.rendezvous_policy import Meeting, MeetingPlace
from clary.agent.worker import Worker

SOON_S, LATER_S = 0.1, 0.5  # interval between scans
_SOON_FOR_S = 10.0
_REST = 20  # pause as a multiple of a scan's processor time: scans use at most a twentieth of one processor
GIVE_UP_S = 1800.0  # torch's own limit for a group to form
_ANYHOW_S = 1.0  # the table is read this often even with an unchanged mark, because counters may return to old values

_GONE = (errno.ESRCH, errno.ENOENT)

logger = logging.getLogger(__name__)


class RendezvousWatch(Companion):
    """Watches the network of one program.

    Args:
        place_of: returns the meeting place for a number of processes; None if ranks do not meet and no watch is needed.
        board: receives `awaits_rendezvous` at the start and `rendezvous_at` once all processes have arrived.
        give_up_s: time after which the watch assumes that the program meets no peers.
    """

    def __init__(
        self, place_of: Callable[[int], MeetingPlace | None], *, board: FactBoard, give_up_s: float = GIVE_UP_S
    ) -> None:
        self._place_of = place_of
        self._board = board
        self._give_up_s = give_up_s
        self._worker: Worker | None = None

    def begin(self, program: WatchedProgram, ml_folder: Path) -> None:
        """Start to watch the first process's network, if its pid is known and the host has peers."""
        place = self._place_of(program.num_processes)
        if place is None or program.init_pid is None:
            return
        self._board.note(awaits_rendezvous=True)
        self._worker = _Looks(program.init_pid, place, tell=self._tell, give_up_s=self._give_up_s)
        self._worker.start()

    def ended(self) -> None:
        """End the watch; no fact is reported afterwards. A second call does nothing."""
        self.abort()

    def abort(self) -> None:
        """End the watch; no fact is reported afterwards. A second call does nothing."""
        if self._worker is not None:
            self._worker.close()

    def _tell(self, rendezvous_at: datetime | None) -> None:
        if self._worker is not None and not self._worker.is_aborted:
            self._board.note(awaits_rendezvous=False, rendezvous_at=rendezvous_at)


class _Looks(Worker):
    """Reads the connections of one program until all processes have arrived; reports the time, or None at the limit."""

    def __init__(
        self, first_pid: int, place: MeetingPlace, *, tell: Callable[[datetime | None], None], give_up_s: float
    ) -> None:
        super().__init__(
            "rendezvous-watch",
            failure="connections to the master port could not be read and are not watched any more",
        )
        self._first_pid = first_pid
        self._meeting, self._ports = Meeting(place), place.ports
        self._tell = tell
        self._began_s = self._read_at_s = time.monotonic()
        self._give_up_s = give_up_s
        self._mark: tuple[int, ...] | None = None
        self._is_told = False

    def _round(self) -> float | None:
        looked_at_s = time.monotonic()
        if looked_at_s - self._began_s >= self._give_up_s:
            self._tell(None)
            return None
        busy_from_s = time.thread_time()  # waits within a scan do not count
        before = self._mark
        try:
            # The mark is read first: a connection established between the two reads changes the mark for the next scan.
            self._mark = change_mark(self._first_pid)
            if self._mark != before or looked_at_s - self._read_at_s >= _ANYHOW_S:
                self._read_at_s = looked_at_s
                if self._has_met():
                    self._tell(datetime.now(timezone.utc))
                    return None
        except OSError as error:
            # An error in the first scan ends the watch; after a later error the scans continue until the program ends.
            if self._mark is not None and error.errno in _GONE:  # the program has ended, and `abort` will follow
                return None
            if before is None:
                logger.warning("connections to the master port are not watched: %s", error)
                self._tell(None)
                return None
            self._mark = ()  # forces the next scan to read the table
            if not self._is_told:
                logger.warning("connections to the master port could not be read, trying again: %s", error)
            self._is_told = True
        interval_s = SOON_S if looked_at_s - self._began_s < _SOON_FOR_S else LATER_S
        return max(interval_s, _REST * (time.thread_time() - busy_from_s))

    def _has_met(self) -> bool:
        connections = read_connections(self._first_pid, self._ports)
        # Read after the table: by then the holder of every socket in the table has opened it.
        holders = socket_holders(self._first_pid) if self._meeting.needs_holders(connections) else {}
        return self._meeting.is_complete(connections, holders)

    def _on_failure(self, error: Exception) -> None:
        self._tell(None)
