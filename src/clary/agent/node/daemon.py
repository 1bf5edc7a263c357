"""The daemon of a box: it polls the service for leases, executes them, and reports their state.

Where: `installation` or systemd starts it; one daemon runs per folder. It only opens outgoing connections. Leases keep
running while the service is unreachable. An answer 410 means that the box was removed: the daemon ends all leases and
removes itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from clary.agent.node.box_folder import BoxConfig, BoxFolder, make_private, owners_name
from clary.agent.node.daemon_log import say
from clary.agent.node.gpu_watch import GpuWatch
from clary.agent.node.lease_processes import adopt_orphans
from clary.agent.node.lease_table import LeaseTable
from clary.agent.node.machine import boot_id, box_facts
from clary.agent.node.service_line import Interrupted, Refused, ServiceLine
from clary.agent.node.user_unit import remove_unit
from clary.base.errors import ContractError
from clary.base.plain import from_plain, to_plain
from clary.base.processes import ProcessId
from clary.base.readiness import readable
from clary.base.tree_removal import remove_folder
from clary.base.whole_files import replace_durably
from clary.contract.box_protocol import BOOT_PATH, LEASES_PATH, POLL_WAIT_S, BoxOrders, BoxReport, LeaseReport

EXIT_HELD = 3  # another daemon has locked the folder
GONE = 410
LOAD_PAUSE_S = 1.0  # between attempts to read the leases while the machine refuses
REFUSED_PAUSE_S = 1.0  # after a step without which nothing can be reported, or nothing be removed
MOVING_S = 0.05  # between checks while leases start or end
MOVING_ASK_S = 2.0  # between requests meanwhile: a lease may hang in the kernel for hours, and the box must be heard
FIRST_GPUS_S = 5.0  # for the first answer of the driver: the silence since the last daemon goes on meanwhile
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 5.0  # after a request without an answer
REMOVAL_LIMIT_S = 60.0
_MAX_LOG_BYTES = 1024 * 1024


def run_daemon(root: Path, archive: Path) -> int:
    """Run the daemon of a folder until a signal or the box's removal; return an exit code.

    Args:
        root: path of the folder.
        archive: zip file with this code.
    """
    folder = BoxFolder(root)
    lock = _lock(folder)
    if lock is None:
        print(f"{root}: another daemon runs", file=sys.stderr)
        return EXIT_HELD
    try:
        daemon = Daemon(folder, archive)
    except (OSError, ValueError, ContractError) as error:
        print(f"{root}: {error}; repair it with: clary hosts add", file=sys.stderr)
        return 1
    daemon.run()
    return 0


def _lock(folder: BoxFolder) -> int | None:
    """Lock the folder and write this process into the lock; return None if another daemon has it."""
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    me = ProcessId.of(os.getpid())
    assert me is not None, "this process exists"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"pid": me.pid, "started": me.started}).encode(), 0)
    return descriptor


class Daemon:
    """One run of the daemon.

    Args:
        folder: of the box.
        archive: zip file with this code.
    Raises: OSError, ValueError, ContractError if the folder lacks valid files of the daemon.
    """

    def __init__(self, folder: BoxFolder, archive: Path) -> None:
        self._folder = folder
        self._config: BoxConfig = folder.read_config()
        self._digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        token = folder.token.read_text(encoding="ascii").strip()
        self._line = ServiceLine(self._config.url, folder.authority, token)
        self._boot_id = boot_id()
        self._gpus = GpuWatch()
        self._table = LeaseTable(
            folder, self._config, archive, self._boot_id, self._source, others=lambda: self._gpus.children
        )
        self._facts = box_facts(restarts=self._config.restarts, gpus=None)
        self._run, self._number = secrets.token_hex(8), 0
        self._orders: BoxOrders | None = None
        self._trouble = self._refusal = ""
        self._pause_s = FIRST_PAUSE_S
        self._leaves = False
        self._woken, self._waker = os.pipe()

    def run(self) -> None:
        """Serve until a signal, or until the box was removed."""
        os.set_blocking(self._waker, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._leave)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # hangup of the session that installed the daemon
        self._clear_out()
        adopt_orphans()
        while not self._try(self._table.load):  # a lease that is not known yet would be reported as gone
            self._rest(LOAD_PAUSE_S)
            if self._leaves:
                return
        say(f"daemon {self._digest[:12]} of {self._config.name} asks {self._config.url}")
        self._gpus.await_first(FIRST_GPUS_S)
        told: object = None
        asked_s = float("-inf")
        while not self._leaves:
            self._look_at_gpus()
            self._try(self._table.look)
            if self._orders is not None and self._table.is_moving:
                self._obey(self._orders)
            reports = self._reports()
            if reports is None:
                self._rest(REFUSED_PAUSE_S)
                continue
            if self._table.is_moving and reports == told and time.monotonic() - asked_s < MOVING_ASK_S:
                self._rest(MOVING_S)
                continue
            is_calm = reports == told and self._line.is_open  # the first request of a connection is answered at once
            if not self._ask(reports, POLL_WAIT_S if is_calm and not self._table.is_moving else 0.0):
                continue
            told, asked_s = reports, time.monotonic()
        self._gpus.close()
        say("leaves; what it has started goes on")

    def _ask(self, reports: tuple[LeaseReport, ...], wait_s: float) -> bool:
        """Report the state and execute the answer; return whether an answer was received."""
        self._number += 1
        report = BoxReport(
            run=self._run,
            number=self._number,
            boot_id=self._boot_id,
            daemon=self._digest,
            facts=self._facts,
            leases=reports,
            after=self._orders.version if self._orders is not None else -1,
            wait_s=wait_s,
        )
        keepers = self._watched()
        try:
            path = LEASES_PATH.format(box=self._config.name)
            watched = [self._woken, *keepers]
            answer = self._line.ask("POST", path, to_plain(report), wait_s=wait_s, watched=watched)
            orders = from_plain(BoxOrders, json.loads(answer))
        except Interrupted:
            self._drain()
            return False
        except Refused as refusal:
            if refusal.status == GONE:
                why = str(refusal)
                if not self._try(lambda: self._go(why)):
                    self._rest(REFUSED_PAUSE_S)
            else:
                self._wait_after(f"the service refuses: {refusal}")
            return False
        except (OSError, http.client.HTTPException, ValueError, ContractError) as error:
            self._wait_after(f"the service does not answer: {type(error).__name__}: {error}")
            return False
        finally:
            for descriptor in keepers:
                os.close(descriptor)
        if self._trouble:
            say("the service answers again")
        self._trouble, self._pause_s = "", FIRST_PAUSE_S
        self._orders = orders
        self._obey(orders)
        return True

    def _reports(self) -> tuple[LeaseReport, ...] | None:
        """Return the state of each lease; None while the machine refuses to tell."""
        found: list[tuple[LeaseReport, ...]] = []
        return found[0] if self._try(lambda: found.append(self._table.reports())) else None

    def _watched(self) -> list[int]:
        """Return the descriptors of `LeaseTable.watched`; an empty list while the machine refuses."""
        found: list[int] = []
        self._try(lambda: found.extend(self._table.watched()))
        return found

    def _obey(self, orders: BoxOrders) -> None:
        self._try(lambda: self._table.obey(orders.leases))

    def _try(self, act: Callable[[], None]) -> bool:
        """Do a part of a round; return whether it is done.

        The next round repeats one that the machine refuses, for example more open files.
        """
        try:
            act()
        except OSError as error:
            if str(error) != self._refusal:
                say(f"this machine refuses: {error}; it is tried again")
            self._refusal = str(error)
            return False
        return True

    def _wait_after(self, trouble: str) -> None:
        """Report a problem once and wait with backoff; the end of a keeper ends the wait."""
        if trouble != self._trouble:
            say(trouble)
        self._trouble = trouble
        self._rest(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s)

    def _rest(self, limit_s: float) -> None:
        keepers = self._watched()
        try:
            readable([self._woken, *keepers], limit_s)
        finally:
            for descriptor in keepers:
                os.close(descriptor)
        self._drain()

    def _drain(self) -> None:
        while readable([self._woken], 0):
            os.read(self._woken, 4096)

    def _leave(self, number: int, frame: object) -> None:
        self._leaves = True

    def _look_at_gpus(self) -> None:
        trouble = self._gpus.look()
        if trouble:
            say(trouble)
        if self._gpus.uuids != self._facts.gpus:
            self._facts = replace(self._facts, gpus=self._gpus.uuids)
            say(f"GPUs: {len(self._gpus.uuids or ())}")

    def _source(self, digest: str) -> Path:
        """Return the file of a boot program, fetched if missing. Raises: OSError."""
        make_private(self._folder.boots)
        path = self._folder.boots / f"{digest}.py"
        if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            return path
        try:
            source = self._line.ask("GET", BOOT_PATH.format(box=self._config.name, digest=digest))
        except (Refused, http.client.HTTPException) as error:
            raise OSError(f"boot {digest[:12]} could not be fetched: {error}") from error
        if hashlib.sha256(source).hexdigest() != digest:
            raise OSError(f"boot {digest[:12]} arrived with different content")
        replace_durably(path, source)
        return path

    def _clear_out(self) -> None:
        """Remove files of other versions, and truncate a log that is too large."""
        for old in self._folder.root.glob("node-*.pyz"):
            if old != self._folder.archive(self._digest):
                old.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            if self._folder.log.stat().st_size > _MAX_LOG_BYTES:
                os.truncate(self._folder.log, 0)

    def _go(self, why: str) -> None:
        """End all leases and remove the folder, because the box was removed."""
        say(f"the box was removed ({why}); it ends what runs here")
        left = self._table.end_all(REMOVAL_LIMIT_S)
        if left:
            say(f"{left} leases cannot be ended; it tries again")
            return
        remove_unit(self._config.name)
        for scratch in filter(None, (self._config.scratch, *self._config.former_scratch)):
            _remove_scratch(Path(scratch))
        for place in self._folder.root.glob("*"):
            if place != self._folder.lock:
                remove_folder(place)
        # The lock is the last to go: an installation that comes meanwhile waits for the end of this daemon.
        _remove_with_parent(self._folder.root)
        self._leaves = True


def _remove_scratch(place: Path) -> None:
    """Remove a folder for hosts, and its parent unless other boxes share it.

    Earlier releases let boxes share the folder `clary-node-UID` itself: there, only what boots of this machine made is
    removed, and folders that are empty then.
    """
    if place.name != owners_name():
        _remove_with_parent(place)
        return
    _remove_with_parent(place / f"clary-{os.geteuid()}" / socket.gethostname())  # see `agent.boot`
    with contextlib.suppress(OSError):
        place.rmdir()


def _remove_with_parent(place: Path) -> None:
    """Remove a folder, and its parent if it is empty then."""
    remove_folder(place)
    with contextlib.suppress(OSError):
        place.parent.rmdir()
