"""Looks when the processes of a host connect to the master port, and tells it in the host's facts.

Where: `program_companions` starts it with the program and closes it with it; a thread of its own reads /proc of the
host's first process. What counts is `rendezvous_policy`'s; the ledger makes the part `rendezvous` of it.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from datetime import UTC, datetime

from clary.agent.fact_board import FactBoard
from clary.agent.rendezvous.connection_table import change_mark, read_connections, socket_holders
from clary.agent.rendezvous.rendezvous_policy import Meeting, MeetingPlace

SOON_S, LATER_S = 0.1, 0.5  # from one look to the next
_SOON_FOR_S = 10.0
_REST = 20  # times the processor time of a look: no more than a twentieth of a processor goes into it
GIVE_UP_S = 1800.0  # torch's own limit for a group to form
_JOIN_S = 5.0
_ANYHOW_S = 1.0  # the table is read this often whatever the mark says: counters can come out even

_GONE = (errno.ESRCH, errno.ENOENT)

logger = logging.getLogger(__name__)


class RendezvousWatch:
    """Looks at the network of one program.

    Args:
        place: where its processes meet others; None: nobody is met, nothing is done.
        board: told `awaits_rendezvous` at once and, once all have come, `rendezvous_at`.
        give_up_s: after how long a program counts as one that meets nobody.
    """

    def __init__(self, place: MeetingPlace | None, *, board: FactBoard, give_up_s: float = GIVE_UP_S) -> None:
        self._place = place
        self._board = board
        self._give_up_s = give_up_s
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, first_pid: int | None) -> None:
        """Begin to look at the network of the host's first process; not where that is not known."""
        if self._place is None or first_pid is None:
            return
        self._board.note(awaits_rendezvous=True)
        arguments = (first_pid, Meeting(self._place), self._place.ports)
        self._thread = threading.Thread(target=self._run, args=arguments, name="rendezvous-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; nothing is told after this. Harmless when repeated."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self, first_pid: int, meeting: Meeting, ports: frozenset[int]) -> None:
        began_s = time.monotonic()
        mark: tuple[int, ...] | None = None
        read_at_s = began_s
        is_told = False
        try:
            while (looked_at_s := time.monotonic()) - began_s < self._give_up_s:
                busy_from_s = (
                    time.thread_time()
                )  # a look waits while ranks compute, which must not put off the next one
                # The mark first: what is established between the two is seen by the next look again.
                before = mark
                try:
                    mark = change_mark(first_pid)
                    if mark != before or looked_at_s - read_at_s >= _ANYHOW_S:
                        read_at_s = looked_at_s
                        if self._has_met(first_pid, meeting, ports):
                            self._tell(rendezvous_at=datetime.now(UTC))
                            return
                except OSError as error:
                    # Without a first look nothing can be read at all; later only a program that is gone ends the watch.
                    if before is None or error.errno in _GONE:
                        raise
                    mark = ()  # what was not read is read at the next look
                    if not is_told:
                        logger.warning("connections to the master port could not be read, trying again: %s", error)
                    is_told = True
                interval_s = SOON_S if looked_at_s - began_s < _SOON_FOR_S else LATER_S
                if self._ending.wait(max(interval_s, _REST * (time.thread_time() - busy_from_s))):
                    return
        except OSError as error:
            if mark is not None and error.errno in _GONE:  # it could be read: the program is gone, `close` will come
                return
            logger.warning("connections to the master port are not looked for: %s", error)
        except Exception:  # boundary: the watch must not end what it watches
            logger.exception("connections to the master port could not be read; they are not looked for any more")
        self._tell()

    def _has_met(self, first_pid: int, meeting: Meeting, ports: frozenset[int]) -> bool:
        connections = read_connections(first_pid, ports)
        # Only after the table: who holds a socket that stands in it was alive then.
        holders = socket_holders(first_pid) if meeting.needs_holders(connections) else {}
        return meeting.is_complete(connections, holders)

    def _tell(self, rendezvous_at: datetime | None = None) -> None:
        if not self._ending.is_set():
            self._board.note(awaits_rendezvous=False, rendezvous_at=rendezvous_at)
