"""Execution of the service's orders for leases, and the report of each lease's state.

Where: `daemon` calls it after every answer of the service, and whenever a keeper (the process that starts a lease's
boot program and ends what it leaves behind) has ended. Its state is in files (`lease_files`) and in /proc, so that the
successor of a killed daemon continues with the same leases.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clary.agent.node.box_folder import ISOLATED, BoxConfig, BoxFolder, write_json
from clary.agent.node.daemon_log import say
from clary.agent.node.keeper import EXIT_KEPT, START_FILE, environment_of
from clary.agent.node.lease_files import LeaseFiles, LeaseRecord
from clary.agent.node.lease_processes import end_marked, kill
from clary.agent.node.lease_troubles import LeaseTroubles
from clary.base.processes import ProcessId
from clary.contract.box_protocol import LEASE_ID, MAX_WORDS, LeaseOrder, LeasePhase, LeaseReport, Wish

KEEPER_LIMIT_S = 30.0  # for a keeper to end the other processes after its boot was killed
START_LIMIT_S = 10.0  # for a started keeper to record that it runs
# longest wait for the end of one lease; a round of the daemon waits several times, and must then poll the service again
END_LIMIT_S = 2.0
LOAD_LIMIT_S = 5.0  # for refusals to read a record to pass, before the box is heard: it counts as silent after 15 s


@dataclass
class _Starting:
    """A keeper that this daemon has started and that has not yet recorded itself."""

    process: subprocess.Popen[bytes]
    at_s: float


class LeaseTable:
    """Leases of this box.

    Args:
        folder: of the daemon.
        config: of the box.
        archive: zip file with this code, for keepers.
        boot_id: of the machine.
        source: returns the file of a boot program by its digest, fetched if missing; raises OSError.
        others: returns the process ids of this process's children that belong to no lease.
    """

    def __init__(
        self,
        folder: BoxFolder,
        config: BoxConfig,
        archive: Path,
        boot_id: str,
        source: Callable[[str], Path],
        *,
        others: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        self._folder = folder
        self._config = config
        self._archive = archive
        self._boot_id = boot_id
        self._source = source
        self._others = others
        self._records: dict[str, LeaseRecord] = {}
        self._unread: set[str] = set()  # leases whose records this machine refuses to read
        self._troubles = LeaseTroubles()
        self._last: dict[str, LeaseReport] = {}  # lease -> what its files said when they could be read
        self._starting: dict[str, _Starting] = {}
        self._gone: dict[str, str] = {}  # ended lease without a record -> reason of the end
        self._ended: dict[str, str] = {}  # lease whose end could not be written yet -> reason of the end
        self._ending_since: dict[str, float] = {}
        self._failures: dict[str, str] = {}  # lease -> reason why it could not be started yet
        self._children: list[subprocess.Popen[bytes]] = []  # keepers to reap

    def load(self) -> None:
        """Load the leases recorded by earlier daemons; call it again after an OSError, before any other method.

        A folder without a record is removed; one with a damaged record is moved to `BoxFolder.set_aside`. A record that
        cannot be read for `LOAD_LIMIT_S` is left to `look`, which tries again; meanwhile the lease stays what it is.

        Raises: OSError if the machine cannot read a record at the moment; nothing is removed for this.
        """
        self._folder.leases.mkdir(mode=0o700, exist_ok=True)
        refusal = None
        for place in list(self._folder.leases.iterdir()):
            try:
                self._load(place.name)
            except OSError as error:
                self._troubles.note(place.name, error)
                if self._troubles.age_s(place.name) > LOAD_LIMIT_S:
                    self._unread.add(place.name)
                else:
                    refusal = error
        if refusal is not None:
            raise refusal

    def _load(self, lease: str) -> None:
        """Load one lease. Raises: OSError."""
        files = self._files(lease)
        record = files.read_record()
        if record is not None and record.lease == lease:
            self._records[lease] = record
        elif files.has_record:
            self._set_aside(files)
        else:
            files.remove()  # without a record no process was started
        self._unread.discard(lease)
        self._troubles.clear(lease)

    def obey(self, orders: Iterable[LeaseOrder]) -> None:
        """Start, signal and end leases as told in the service's answer.

        Also end and remove every lease that the answer does not name. A lease that the machine refuses to handle is
        left for the next call.
        """
        wanted = {order.lease: order for order in orders if LEASE_ID.fullmatch(order.lease)}
        for lease in [lease for lease in (*self._records, *self._unread) if lease not in wanted]:
            self._safely(lease, partial(self._end_unwanted, lease))
        self._gone = {lease: why for lease, why in self._gone.items() if lease in wanted}
        for lease, order in wanted.items():
            self._safely(lease, partial(self._execute, order))

    def _end_unwanted(self, lease: str) -> None:
        if self._end(lease):
            self._forget(lease)

    def _execute(self, order: LeaseOrder) -> None:
        record = self._records.get(order.lease)
        if order.wish is Wish.END:
            self._end(order.lease)
        elif order.lease in self._unread:
            return  # its processes may run: a new record would start it a second time
        elif record is None:
            self._record(order)
        elif order.may_start and self._phase(record) is LeasePhase.RECORDED:
            self._begin(record)
        elif order.wish is Wish.NOTICE:
            self._signal(record)

    def look(self) -> None:
        """Record leases that have ended by themselves, and load those whose records can be read again."""
        self._reap()
        for lease in list(self._unread):
            self._safely(lease, partial(self._load, lease))
        for lease, starting in list(self._starting.items()):
            self._safely(lease, partial(self._follow, lease, starting))
        for record in list(self._records.values()):
            self._safely(record.lease, partial(self._notice_end, record))

    def _safely(self, lease: str, act: Callable[[], bool | None]) -> bool | None:
        """Return the result of an act on one lease; None if the machine refuses, which is noted."""
        try:
            return act()
        except OSError as error:
            self._troubles.note(lease, error)
            return None

    def reports(self) -> tuple[LeaseReport, ...]:
        """Return the state of each lease."""
        told = [self._report(record) for record in self._records.values()]
        gone = [LeaseReport(lease=lease, phase=LeasePhase.GONE, why=why) for lease, why in self._gone.items()]
        unread = [self._report_unread(lease) for lease in sorted(self._unread) if LEASE_ID.fullmatch(lease)]
        return (*told, *gone, *unread)

    def watched(self) -> list[int]:
        """Return descriptors that become readable when a keeper ends; the caller closes them."""
        found = []
        for record in self._records.values():
            files = self._files(record.lease)
            with contextlib.suppress(OSError):  # `look` notices the end of a lease that cannot be watched
                keeper = files.read_keeper()
                if keeper is None or files.read_end() is not None:
                    continue
                descriptor = os.pidfd_open(keeper.pid)
                is_alive = False
                try:
                    is_alive = keeper.identity.is_alive()
                finally:
                    if is_alive:
                        found.append(descriptor)
                    else:
                        os.close(descriptor)
        return found

    @property
    def is_moving(self) -> bool:
        """Whether a lease is starting or ending, so that `look` must be called soon."""
        return bool(self._starting or self._ending_since)

    def end_all(self, limit_s: float) -> int:
        """End every lease of a removed box; return how many leases could not be ended.

        Args:
            limit_s: longest wait.
        """
        deadline_s = time.monotonic() + limit_s
        while True:
            leases = [*self._records, *self._unread]
            left = [lease for lease in leases if not self._safely(lease, partial(self._end, lease))]
            if not left or time.monotonic() > deadline_s:
                return len(left)
            time.sleep(0.05)

    # One lease

    def _set_aside(self, files: LeaseFiles) -> None:
        aside = self._folder.set_aside / files.folder.name
        try:
            files.set_aside(aside)
        except OSError as error:
            say(f"{files.folder}: its record is damaged, and it cannot be moved to {aside}: {error}")
            return
        say(f"{files.folder}: its record is damaged; it was moved to {aside}")

    def _files(self, lease: str) -> LeaseFiles:
        return LeaseFiles(self._folder.leases / lease)

    def _report(self, record: LeaseRecord) -> LeaseReport:
        if (why := self._ended.get(record.lease)) is not None:
            return LeaseReport(
                lease=record.lease, phase=LeasePhase.GONE, proof_digest=record.proof_digest, why=_printable(why)
            )
        try:
            told = self._last[record.lease] = self._read_report(record)
        except OSError as error:
            self._troubles.note(record.lease, error)
            return self._last.get(record.lease) or self._report_unread(record.lease)
        self._troubles.clear(record.lease)
        return told

    def _report_unread(self, lease: str) -> LeaseReport:
        """Return a report that changes nothing for the service, except for the reason of a wait."""
        return LeaseReport(lease=lease, phase=LeasePhase.PLACED, why=_printable(self._troubles.why(lease)))

    def _read_report(self, record: LeaseRecord) -> LeaseReport:
        files = self._files(record.lease)
        boot = files.read_boot()
        return LeaseReport(
            lease=record.lease,
            phase=self._phase(record),
            proof_digest=record.proof_digest,
            pid=boot.pid if boot is not None else 0,
            started=boot.started if boot is not None else "",
            why=_printable(files.read_end() or self._failures.get(record.lease, "")),
        )

    def _phase(self, record: LeaseRecord) -> LeasePhase:
        files = self._files(record.lease)
        if self._has_ended(files):
            return LeasePhase.GONE
        is_begun = record.lease in self._starting or files.read_keeper() is not None
        return LeasePhase.RUNNING if is_begun else LeasePhase.RECORDED

    def _record(self, order: LeaseOrder) -> None:
        if order.lease in self._gone:
            return
        try:
            self._records[order.lease] = self._files(order.lease).make(order, self._boot_id)
        except OSError as error:  # no keeper was started; the service repeats the order in its next answer
            say(f"{order.lease}: cannot be recorded: {error}")

    def _begin(self, record: LeaseRecord) -> None:
        """Start the keeper of a lease; log an OSError instead of raising it."""
        files = self._files(record.lease)
        try:
            source = self._source(record.boot)
            scratch = self._folder.scratch(self._config)
            scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            command = [sys.executable, str(source), "--service", self._config.url]
            command += ["--ca", str(self._folder.authority), "--tag", record.tag, "--index", str(record.index)]
            command += ["--proof", f"file:{files.proof}", "--scratch", str(scratch)]
            write_json(files.folder / START_FILE, {"command": command})
            with open(files.output, "ab") as output:
                process = subprocess.Popen(
                    [sys.executable, *ISOLATED, str(self._archive), "keep", str(files.folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env=environment_of(record.lease),
                )
        except OSError as error:
            say(f"{record.lease}: cannot be started: {error}")
            self._failures[record.lease] = str(error)
            return
        self._failures.pop(record.lease, None)
        self._children.append(process)
        self._starting[record.lease] = _Starting(process, time.monotonic())

    def _follow(self, lease: str, starting: _Starting) -> None:
        """Check whether a started keeper has recorded itself and its boot."""
        code, files = starting.process.poll(), self._files(lease)
        if files.read_keeper() is not None:
            if code is not None or files.read_boot() is not None:
                self._starting.pop(lease)
        elif code is None:
            if time.monotonic() - starting.at_s > START_LIMIT_S:
                starting.process.kill()
        else:
            self._starting.pop(lease)
            if code != EXIT_KEPT:  # EXIT_KEPT: another keeper has the lease
                self._write_end(lease, f"its keeper could not be started: exit code {code}; see {files.output}")

    def _notice_end(self, record: LeaseRecord) -> None:
        """Record the end of a lease whose keeper died before it recorded the end, or whose end could not be written."""
        lease, files = record.lease, self._files(record.lease)
        if lease in self._ended:
            self._write_end(lease, self._ended[lease])
            return
        if files.read_end() is not None:
            return
        if record.boot_id != self._boot_id:
            self._write_end(lease, f"{self._config.name} was started again")
            return
        keeper, boot = files.read_keeper(), files.read_boot()
        if keeper is None or keeper.identity.is_alive():
            return
        if files.read_end() is not None:
            return  # the keeper has just recorded the end
        known = [boot.identity] if boot is not None else []
        if self._end_left(lease, known) == 0:
            self._write_end(lease, "the process that kept its agent was killed")

    def _signal(self, record: LeaseRecord) -> None:
        """Send the agent its notice, a SIGTERM, once."""
        files = self._files(record.lease)
        boot = files.read_boot()
        if boot is None or files.notice.exists() or files.read_end() is not None:
            return
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(boot.pid)
            try:
                if boot.identity.is_alive():
                    files.notice.touch(mode=0o600)  # recorded first: a second signal would make the agent leave
                    signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            finally:
                os.close(descriptor)

    def _end(self, lease: str) -> bool:
        """End a lease as far as currently possible; return whether it has ended completely."""
        record, files = self._records.get(lease), self._files(lease)
        if lease in self._unread:
            return self._troubles.is_lasting(lease) and self._end_unread(lease)
        if record is None:
            if lease not in self._gone and self._end_left(lease) == 0:
                self._gone[lease] = f"{self._config.name} has no record of it"
            return lease in self._gone
        try:
            if self._has_ended(files):
                self._ending_since.pop(lease, None)
                return True
            keeper, boot = files.read_keeper(), files.read_boot()
        except OSError:
            if not self._troubles.is_lasting(lease):
                raise
            return self._end_unread(lease)
        if record.boot_id != self._boot_id:
            self._write_end(lease, f"{self._config.name} was started again")
            return True
        since_s = self._ending_since.setdefault(lease, time.monotonic())
        known = [each.identity for each in (boot, keeper) if each is not None]
        if keeper is not None and keeper.identity.is_alive() and time.monotonic() - since_s < KEEPER_LIMIT_S:
            if boot is not None:
                kill([boot.identity])
                return self._await_keeper(lease, keeper.identity)
            return False  # the keeper is about to start the boot, whose process is not yet known
        if not self._end_starting(lease) or self._end_left(lease, known):
            return False
        self._write_end(lease, "it was ended by the service")
        return True

    def _end_starting(self, lease: str) -> bool:
        """End a keeper that has not recorded itself; return whether it has ended."""
        starting = self._starting.get(lease)
        if starting is not None:
            starting.process.kill()
            try:
                starting.process.wait(timeout=END_LIMIT_S)
            except subprocess.TimeoutExpired:
                return False  # it hangs in the kernel
            del self._starting[lease]
        return True

    def _end_unread(self, lease: str) -> bool:
        """End a lease whose files do not say which processes it has; return whether it has ended completely."""
        if not self._end_starting(lease) or self._end_left(lease):
            return False
        self._gone[lease] = _printable(f"it was ended by the service; {self._troubles.why(lease)}")
        self._forget(lease)
        return True

    def _await_keeper(self, lease: str, keeper: ProcessId) -> bool:
        """Wait briefly for the keeper to end the boot's remaining processes; return whether it has."""
        deadline_s = time.monotonic() + END_LIMIT_S
        while keeper.is_alive() and time.monotonic() < deadline_s:
            self._reap()
            time.sleep(0.01)
        files = self._files(lease)
        if keeper.is_alive() or files.read_end() is None or self._end_left(lease):
            return False
        self._ending_since.pop(lease, None)
        return True

    def _end_left(self, lease: str, known: Iterable[ProcessId] = ()) -> int:
        """End the processes of a lease; return how many are left, at least one if they cannot be listed."""
        own = {child.pid for child in self._children} | set(self._others())
        try:
            return end_marked(lease, known, own, limit_s=END_LIMIT_S)
        except OSError as error:  # this process, or the machine, has too many open files
            say(f"{lease}: its processes cannot be listed: {error}")
            return 1

    def _has_ended(self, files: LeaseFiles) -> bool:
        """Whether no process of a lease is left. Raises: OSError."""
        return files.folder.name in self._ended or files.read_end() is not None

    def _write_end(self, lease: str, why: str) -> None:
        """Record the end of a lease; if the machine refuses, `look` tries again, and the lease is gone all the same."""
        self._ending_since.pop(lease, None)
        try:
            self._files(lease).write_end(why)
        except OSError as error:
            self._ended[lease] = why
            self._troubles.note(lease, error)
        else:
            self._ended.pop(lease, None)

    def _forget(self, lease: str) -> None:
        self._files(lease).remove()
        self._records.pop(lease, None)
        self._unread.discard(lease)
        self._troubles.clear(lease)
        self._last.pop(lease, None)
        self._failures.pop(lease, None)
        self._ended.pop(lease, None)
        self._ending_since.pop(lease, None)

    def _reap(self) -> None:
        self._children = [child for child in self._children if child.poll() is None]


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)[:MAX_WORDS]
