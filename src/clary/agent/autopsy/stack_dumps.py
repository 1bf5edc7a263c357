"""Dumps of a host's processes, taken when the service requests one and when the program makes no progress.

Where: `supervisor` forwards the requests in the service's receipts, `program_companions` set the running program,
`hang_alarm` takes a dump before it ends a program that hangs. Each dump is taken on a thread of its own, one at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from http import HTTPStatus
from pathlib import Path

from clary.agent.autopsy.host_dump import LIMIT_S, dump_host
from clary.agent.companion import Companion, WatchedProgram
from clary.agent.sender import send_until_taken
from clary.agent.service_client import AttemptOver, ServiceRefused
from clary.contract.launch_plan import HostPlan
from clary.contract.stack_dumps import HostDump

_JOIN_S = 2.0
UNASKED = 0  # number of a dump that the agent takes without a request
# how long sending is retried while the service is unreachable; a later dump is worth little, and the service requests
# the next one
_SEND_S = 20.0

logger = logging.getLogger(__name__)


class StackDumps(Companion):
    """Takes and sends dumps of one host.

    Args:
        host: the host whose processes are dumped.
        send: sends a dump to the service; raises the errors of `ServiceClient`.
    """

    def __init__(self, host: HostPlan, *, send: Callable[[HostDump], None]) -> None:
        self._host = host
        self._send = send
        self._first_pid: int | None = None
        self._ranks: Callable[[], Mapping[int, int]] = dict
        self._ml_folder: Path | None = None
        self._newest = UNASKED  # number of the newest accepted request
        self._taking = threading.Lock()
        self._sending = threading.Lock()  # all dumps are sent over one connection
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self, program: WatchedProgram, ml_folder: Path) -> None:
        """Set the program whose processes are dumped."""
        self._first_pid, self._ranks = program.init_pid, program.ranks_by_pid
        self._ml_folder = ml_folder

    def ended(self) -> None:
        """Clear the program: dumps from now on report that no program runs."""
        self._first_pid = None

    def ask(self, number: int, reason: str) -> None:
        """Start a dump for request `number`, once per number, and return at once; the dump is sent when ready."""
        if number > self._newest and not self._ending.is_set():
            self._newest = number
            self._start(number, reason)

    def take_unasked(self, reason: str) -> threading.Event:
        """Start a dump and return at once an event that is set once the dump is sent or has failed."""
        return self._start(UNASKED, reason)

    def close(self, timeout_s: float = _JOIN_S) -> bool:
        """Dump no further process, send no further dump, and wait for the running dumps; return True.

        Args:
            timeout_s: longest wait; at most `_JOIN_S`.
        """
        self._ending.set()
        end_s = time.monotonic() + min(timeout_s, _JOIN_S)
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        return True  # a read that hangs in the kernel ends with the agent's process

    def _start(self, number: int, reason: str) -> threading.Event:
        is_over = threading.Event()
        arguments = (number, reason, is_over)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(
            threading.Thread(target=self._take_and_send, args=arguments, name="stack-dump", daemon=True)
        )
        self._threads[-1].start()
        return is_over

    def _take_and_send(self, number: int, reason: str, is_over: threading.Event) -> None:
        try:
            self._deliver(self._take(number, reason))
        finally:
            is_over.set()

    def _take(self, number: int, reason: str) -> HostDump:
        first_pid, now = self._first_pid, datetime.now(timezone.utc)
        error = "no program runs on this host" if first_pid is None else ""
        if first_pid is not None and not self._taking.acquire(timeout=2 * LIMIT_S):
            error = "another dump of this host is still being taken"
        elif first_pid is not None:
            try:
                return dump_host(
                    first_pid,
                    number=number,
                    reason=reason,
                    host=self._host.name,
                    addresses=(self._host.address,),
                    ranks=self._ranks(),
                    now=now,
                    ml_folder=self._ml_folder,
                    is_ending=self._ending.is_set,
                )
            except Exception as failure:  # error boundary: a dump must not end the program
                logger.exception("the processes of %s could not be looked at", self._host.name)
                error = f"{type(failure).__name__}: {failure}"
            finally:
                self._taking.release()
        return HostDump(
            number=number,
            reason=reason,
            host=self._host.name,
            taken_at=now,
            addresses=(self._host.address,),
            processes=(),
            error=error,
        )

    def _deliver(self, dump: HostDump) -> None:
        while True:
            message = partial(self._send, dump)
            try:
                send_until_taken(message, limit_s=_SEND_S, ending=self._ending, lock=self._sending)
                return
            except (AttemptOver, ServiceRefused) as error:
                if error.details.get("status") != HTTPStatus.REQUEST_ENTITY_TOO_LARGE or not dump.processes:
                    logger.warning("the dump could not be sent: %s", error)
                    return
                dump = shortened(dump)
            except Exception:  # error boundary: as above
                logger.exception("the dump could not be sent")
                return


def shortened(dump: HostDump) -> HostDump:
    """Return the dump reduced to the main threads of ranks, or to no process if it was reduced already. Pure."""
    ranks = [process for process in dump.processes if process.rank is not None]
    kept = tuple(
        replace(
            process,
            threads=tuple(thread for thread in process.threads if thread.is_main),
            sockets=(),
            collectives=tuple(replace(group, calls=group.calls[:1]) for group in process.collectives),
        )
        for process in ranks
    )
    if kept == dump.processes:
        kept = ()
    why = dump.error or "the service takes no more at once: ranks and their main threads alone are shown"
    return replace(dump, processes=kept, num_left_out=dump.num_left_out + len(dump.processes) - len(kept), error=why)
