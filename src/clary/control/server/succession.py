"""One service takes the place of another while jobs run on: how the old one is told, and how it differs from an end.

Where: `clary restart` starts the next service with `SUCCEED`. That service imports all its code and checks its settings
first, so that a broken installation or setting leaves the old one in place. Then it sends the old one `HAND_OVER` and
waits for its end. A release before 0.1 does not know the signal and is ended by it at once, as by a kill; the jobs go
on in both cases.

    old service                                 next service
      runs                                        imports, checks
      <- SIGUSR1 ---------------------------------- asks
      sends its listening sockets, answers what     waits; new clients wait in the sockets' queues
      is under way, gives the lease back, leaves
      object store and hosts running; ends
                                                  takes the folder, adopts the store and the hosts, answers
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import signal
from pathlib import Path

from clary.base.errors import ContractError, EngineError, Fault, StoreError
from clary.base.processes import ProcessId
from clary.control.full_disks import why_unwritable
from clary.control.objects import weed_process
from clary.control.scheduling.prices import load_prices
from clary.control.scheduling.spot import load_schedule
from clary.control.server.edge.handed_sockets import HandedSockets, SocketInbox
from clary.control.server.ports import require_free
from clary.control.settings import Settings
from clary.control.state_folder import StateFolder

SUCCEED = "--succeed="  # option of the server: PID:START of the service whose place it takes
SUPERVISED = "--supervised"  # option of the server: it runs in the foreground of the program that started it
TURN = "succession.lock"  # file in `run` that the service locks which takes another's place
HAND_OVER = signal.SIGUSR1
HAND_OVER_LIMIT_S = 30.0  # after this the old service is killed, which its jobs survive too

log = logging.getLogger(__name__)


class Leave(asyncio.Event):
    """Set when the service has to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.keeps_jobs = False  # whether jobs, their hosts and the object store are the next service's

    def hand_over(self) -> None:
        """Let the service stop without its jobs, unless it is told to stop with them already."""
        if not self.is_set():
            self.keeps_jobs = True
            self.set()


def predecessor_of(options: list[str]) -> ProcessId | None:
    """Return the service whose place the options of the server name, or None."""
    for option in options:
        if option.startswith(SUCCEED):
            pid, _, started = option.removeprefix(SUCCEED).partition(":")
            return ProcessId(int(pid), started)
    return None


def succeed_option(process: ProcessId) -> str:
    """Return the option that makes a server take the place of `process`."""
    return f"{SUCCEED}{process.pid}:{process.started}"


def is_taken_over(folder: StateFolder) -> bool:
    """Whether a service is about to take the place of the folder's service, or has just done so."""
    try:
        with (folder.root / "run" / TURN).open("rb") as turn:
            fcntl.flock(turn, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no service has taken another's place here
        return False
    return False


def check_start(settings: Settings) -> None:
    """Check for causes that would end the start of the next service, while the old one runs.

    Raises: ClaryError that names the cause.
    """
    folder = StateFolder(settings.home_folder)
    if why := why_unwritable(folder.root):
        raise StoreError(f"the next service would not start: {why}", fault=Fault.INFRASTRUCTURE, retryable=True)
    folder.load_secrets()
    load_prices(settings.prices_file)
    if settings.spot_schedule_file:
        load_schedule(Path(settings.spot_schedule_file).expanduser(), time_scale=settings.spot_time_scale)
    if not settings.s3_endpoint_url:
        weed_process.find_program()
    elif not settings.s3_access_key_id or not settings.s3_secret_access_key:
        raise ContractError(
            "s3_endpoint_url is set, but s3_access_key_id or s3_secret_access_key is not", fault=Fault.USER
        )
    require_free(settings, folder.read_service_record())


def take_turn(predecessor: ProcessId, folder: StateFolder) -> HandedSockets:
    """Ask the old service to hand over, wait until it has ended, and return the sockets on which it listened.

    A service that does not end in time is killed. Until the sockets are closed, no other process can take the place:
    of two, one would have the sockets and the other the folder, and neither could start.

    Raises: EngineError if another process takes the place, or the old service cannot be ended.
    """
    turn = (folder.root / "run" / TURN).open("ab")
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with SocketInbox(folder.root / "run") as inbox:
            if predecessor.end_by(HAND_OVER, timeout_s=HAND_OVER_LIMIT_S):
                return HandedSockets(inbox.receive(), turn=turn)
            log.warning("process %d has not left within %.0f s; it is killed", predecessor.pid, HAND_OVER_LIMIT_S)
            if predecessor.kill(timeout_s=HAND_OVER_LIMIT_S):
                return HandedSockets(inbox.receive(), turn=turn)
        why = "it does not end"
    except BlockingIOError:
        why = "another service takes its place already"
    except PermissionError:
        why = "it belongs to another user"
    turn.close()
    raise EngineError(f"the service of process {predecessor.pid} could not be ended: {why}", fault=Fault.USER)
