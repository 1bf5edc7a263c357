"""The embedded object store: one SeaweedFS process (`weed mini`) that belongs to a state folder.

Where: `server.foundations` starts it if no S3 endpoint is set; `front.S3Front` and agents use its endpoint. It keeps
its data in `<home>/objects`, its log in `<home>/run/seaweed.log`, its ports and process in `<home>/run/seaweed.json`.

[Note: who owns the process] The store runs in its own session, so that neither Ctrl-C nor a kill of the service ends
it: running agents continue to use their direct endpoint. The next service adopts it if it answers, or stops it by the
recorded pid and starts another on the same ports. A lock on `<home>/run/seaweed.lock` keeps two services apart.

[Note: who reaches the store] Every user of the machine can connect to its ports. The S3 port requires signatures by the
store's own key; `weed_security` secures the other ports. A process of a version that did not secure its ports is not
adopted.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import subprocess
import time
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from clary.base.errors import Fault, ObjectStoreError
from clary.base.processes import ProcessId
from clary.contract.launch_plan import Credentials, Endpoint
from clary.control.background_tasks import keep_running
from clary.control.full_disks import why_full, why_unwritable
from clary.control.objects import volume_indexes, weed_process, weed_security
from clary.control.objects.start_patience import StartPatience, signs_of
from clary.control.objects.store_client import StoreClient
from clary.control.objects.weed_process import StoreRecord

START_SILENCE_S = 30.0
ADOPT_TIMEOUT_S = 5.0
STOP_GRACE_S = 10.0  # a healthy store exits 3.6 s after SIGTERM
PROBE_INTERVAL_S = 0.1
PORT_WAIT_S = 3.0
MAX_PORT_CHOICES = 4  # per start, if ports are taken between choice and bind
REAP_TIMEOUT_S = 1.0
LOOK_INTERVAL_S = 1.0  # between tries to watch a process while the service has no free descriptor
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
STEADY_S = 60.0  # a store that ran this long is restarted with the shortest back-off
LOG_TAIL_LINES = 20
MAX_LOG_BYTES = 8 * 1024 * 1024  # a longer log is moved to seaweed.log.1 at the next start

_log = logging.getLogger(__name__)


class EmbeddedStore:
    """Starts, adopts, watches and stops the store of one state folder.

    Args:
        home_folder: the service's state folder.
        credentials: the store's own key; only the service and its agents know it.
        region: region of the returned endpoint; the store accepts any region.
        bucket: a bucket that is made at start and serves the readiness probe; the default bucket of the clients.
        start_silence_s: seconds without signs of life after which a start is abandoned (`start_patience`).
    """

    def __init__(
        self,
        home_folder: Path,
        *,
        credentials: Credentials,
        region: str = "us-west-2",
        bucket: str = "clary",
        start_silence_s: float = START_SILENCE_S,
    ) -> None:
        self._data_folder = home_folder / "objects"
        self._run_folder = home_folder / "run"
        self._record_path = self._run_folder / "seaweed.json"
        self._log_path = self._run_folder / "seaweed.log"
        self._credentials = credentials
        self._region = region
        self._bucket = bucket
        self._start_silence_s = start_silence_s
        self._lock: IO[str] | None = None
        self._record: StoreRecord | None = None
        self._child: subprocess.Popen[bytes] | None = None  # None for an adopted process
        self._watcher: asyncio.Task[None] | None = None
        self._is_ready = False

    @property
    def endpoint(self) -> Endpoint:
        """The store's endpoint; the same before and after restarts.

        Raises: ObjectStoreError before the first start.
        """
        if self._record is None:
            raise ObjectStoreError("embedded object store: it has no endpoint before it is started; call start() first")
        url = f"http://{weed_process.HOST}:{self._record.ports['s3']}"
        return Endpoint(url=url, region=self._region, credentials=self._credentials, aliases_keys=True)

    @property
    def data_folder(self) -> Path:
        """Folder of the store's objects and metadata; its process never calls fsync."""
        return self._data_folder

    @property
    def is_ready(self) -> bool:
        """Whether the store answered its last probe and has not died since."""
        return self._is_ready

    @property
    def is_adopted(self) -> bool:
        """Whether an earlier service has started the process, on which agents may rely."""
        return self._child is None and self.process is not None

    @property
    def process(self) -> ProcessId | None:
        """The recorded process of the store; None without one."""
        return None if self._record is None else self._record.process

    async def start(self) -> Endpoint:
        """Adopt the folder's running store or start a new one; return when objects can be written, read and deleted.

        Raises: ObjectStoreError with the end of the store's log if the process ends or hangs (no process is left
            behind), or if another service holds the folder.
        """
        self._take_lock()
        try:
            if not await self._adopt():
                await self._launch_on_free_ports()
        except BaseException:
            self._release_lock()
            raise
        self._watcher = keep_running("seaweed-watch", self._watch)
        return self.endpoint

    async def stop(self) -> None:
        """Stop watching, end the process (SIGTERM, then SIGKILL by pid) and unlock the folder; no-op if not started."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
        await self._end_process()
        self._release_lock()

    async def leave(self) -> None:
        """Stop watching and unlock the folder; the process runs on for agents, and the next service adopts it."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
        if self._child is not None:
            self._child.returncode = 0  # it outlives this process on purpose
        self._release_lock()

    def keep_record(self) -> None:
        """Restore the record if its file was deleted or damaged; raises OSError."""
        if self._record is not None and StoreRecord.read(self._record_path) != self._record:
            _log.warning("%s was deleted or damaged; it is written anew", self._record_path)
            self._record.write(self._record_path)

    async def _adopt(self) -> bool:
        record = StoreRecord.read(self._record_path)
        if record is None or record.process is None or not record.process.is_alive():
            # The record was damaged, or a service was killed before it had recorded its new process. A second process
            # on the same folder would end at once, so this searches for a running process.
            found = await asyncio.to_thread(weed_process.find_running, self._data_folder)
            if found is None or found.process is None:
                return False
            _log.warning("object store: process %d runs without a record; starting another", found.process.pid)
            self._record = found
            await self._end_process()
            return False
        self._record = record
        if not record.is_secured:
            _log.warning(
                "object store: process %d of an earlier version leaves its ports open to other users; starting another",
                record.process.pid,
            )
        elif await self._why_not_ready(StartPatience(time.monotonic(), silence_s=ADOPT_TIMEOUT_S)) is None:
            _log.info("object store: adopted the running process %d on %s", record.process.pid, self.endpoint.url)
            return True
        else:
            _log.warning(
                "object store: process %d of an earlier service does not answer; starting another", record.process.pid
            )
        await self._end_process()
        return False

    async def _launch_on_free_ports(self) -> None:
        """Choose ports and start a process; if it ends because a port was taken meanwhile, choose again."""
        for num_left in reversed(range(MAX_PORT_CHOICES)):
            self._record = StoreRecord(ports=await self._choose_ports())
            try:
                await self._launch()
                return
            except ObjectStoreError as error:
                taken = error.details.get("taken_ports")
                if not taken or not num_left:
                    raise
                _log.warning("object store: %s was taken before the store listened on it; choosing again", taken)

    async def _choose_ports(self) -> dict[str, int]:
        """Return the recorded ports, each replaced by a new port if it stays taken."""
        fresh = weed_process.choose_ports()
        record = StoreRecord.read(self._record_path)
        if record is None:
            return fresh
        # The sockets of a killed process close a moment after its end.
        deadline = time.monotonic() + PORT_WAIT_S
        taken: set[str] = set()
        while time.monotonic() < deadline and (taken := weed_process.taken_ports(record.ports)):  # noqa: ASYNC110
            await asyncio.sleep(PROBE_INTERVAL_S)
        return _replaced(record.ports, taken, fresh)

    def _leave_taken_ports(self) -> None:
        """Replace ports of a process that has ended if they are taken now; the S3 port stays, for agents use it."""
        if self._record is not None and (taken := weed_process.taken_ports(self._record.ports) - {"s3"}):
            ports = _replaced(self._record.ports, taken, weed_process.choose_ports())
            self._record = replace(self._record, ports=ports)

    async def _launch(self) -> None:
        """Start a process on the record's ports and wait until it is ready; on failure the process is ended."""
        assert self._record is not None
        program = weed_process.find_program()
        started_at = time.monotonic()
        try:
            await asyncio.to_thread(volume_indexes.mend_damaged, self._data_folder)
            self._child = self._spawn(program, self._record.ports)
            identity = ProcessId.of(self._child.pid)
            self._record = StoreRecord(ports=self._record.ports, process=identity, is_secured=True)
            self._record.write(self._record_path)
            why = await self._why_not_ready(StartPatience(started_at, silence_s=self._start_silence_s))
            if why is not None:
                raise self._not_ready_error(why, time.monotonic() - started_at)
        except OSError as error:
            await self._end_process()
            advice = why_unwritable(self._data_folder) or "see that its folders can be written"
            raise ObjectStoreError(
                f"embedded object store: its files below {self._data_folder.parent} cannot be written: "
                f"{error.strerror}; {advice}",
                fault=Fault.INFRASTRUCTURE,
                retryable=True,
            ) from error
        except BaseException:
            await self._end_process()
            raise
        _log.info(
            "object store: process %d serves %s after %.1f s",
            self._child.pid,
            self.endpoint.url,
            time.monotonic() - started_at,
        )

    def _spawn(self, program: str, ports: dict[str, int]) -> subprocess.Popen[bytes]:
        for folder in (self._data_folder, self._log_path.parent):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Weed saves its options in this file and would load them at the next start; only the command line is to count.
        (self._data_folder / "mini.options").unlink(missing_ok=True)
        weed_security.write_security(self._data_folder, address=weed_process.HOST, now=datetime.now(UTC))
        if self._log_path.exists() and self._log_path.stat().st_size > MAX_LOG_BYTES:
            self._log_path.replace(self._log_path.with_suffix(".log.1"))
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._data_folder),  # otherwise ~/.seaweedfs/*.toml of the user would configure the store
            "AWS_ACCESS_KEY_ID": self._credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self._credentials.secret_access_key,
            "GOMEMLIMIT": weed_process.MEMORY_LIMIT,
            "SENTRY_DSN": weed_process.REPORTER_ADDRESS,
        }
        arguments = weed_process.command(program, data_folder=self._data_folder, ports=ports, bucket=self._bucket)
        descriptor = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return subprocess.Popen(
                arguments,
                cwd=self._data_folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,  # otherwise every user could connect to weed's control sockets in /tmp
            )
        except OSError as error:
            raise ObjectStoreError(
                f"embedded object store: {program} cannot be started: {error}", details={"program": program}
            ) from error
        finally:
            os.close(descriptor)

    async def _why_not_ready(self, patience: StartPatience) -> str | None:
        """Probe the store until it serves objects; return why the attempt was abandoned, None on success."""
        async with StoreClient(self.endpoint, timeout_s=patience.silence_s) as client:
            while (process := self.process) is not None and process.is_alive():
                if await _won_over(self._probe(client), _ended(process)):
                    self._is_ready = True
                    return None
                # A full disk is a reason to abandon a start, but not an adoption: a running store still serves reads.
                why = (self._why_hopeless() if self._child else "") or patience.why_over(
                    time.monotonic(), signs_of(process.pid, self._log_path)
                )
                if why is not None:
                    return why
                await asyncio.sleep(PROBE_INTERVAL_S)
        return "it ended"

    async def _probe(self, client: StoreClient) -> None:
        """Put, get and delete an object; on a disk that is too full for weed to take objects, only list the bucket.

        Then the store serves reads and deletes objects, with which its owner can make room.
        Raises: ObjectStoreError if a request fails.
        """
        why = why_full(self._data_folder, min_free_share=weed_process.MIN_FREE_SHARE)
        if not why:
            await client.probe(self._bucket)
            return
        await client.probe_listing(self._bucket)
        _log.warning("object store: it serves and removes objects, but takes no new ones: %s", why)

    def _why_hopeless(self) -> str:
        """Return why a start cannot succeed, or an empty text."""
        assert self._record is not None
        blocked = weed_process.blocked_sockets(self._record.ports)
        return why_unwritable(self._data_folder) or (
            f"another user made {', '.join(blocked.values())}, where it makes sockets" if blocked else ""
        )

    def _process_is_alive(self) -> bool:
        process = self.process
        return process is not None and process.is_alive()

    def _not_ready_error(self, why: str, waited_s: float) -> ObjectStoreError:
        assert self._record is not None
        is_alive = self._process_is_alive()
        how = f"did not serve objects: {why}," if is_alive else "ended"
        # The ports are probed, because the log's text changes with the store's version.
        ports = self._record.ports
        taken = weed_process.blocked_sockets(ports) if is_alive else weed_process.taken_ports(ports)
        return ObjectStoreError(
            f"embedded object store: weed {how} after {waited_s:.1f} s in {self._data_folder}; "
            f"end of {self._log_path}:\n{self._log_tail()}",
            fault=Fault.INFRASTRUCTURE,
            retryable=True,
            details={
                "log": str(self._log_path),
                "taken_ports": ", ".join(f"port {ports[name]} ({name})" for name in sorted(taken)),
            },
        )

    def _log_tail(self) -> str:
        try:
            lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            return f"(not readable: {error})"
        return "\n".join(lines[-LOG_TAIL_LINES:])

    async def _watch(self) -> None:
        """Restart the store whenever it dies, with growing pauses while it dies soon after its start."""
        backoff_s = FIRST_BACKOFF_S
        ready_at: float | None = time.monotonic()  # of the process that ran last; None after a failed start
        while True:
            if self.process is not None:
                await _ended(self.process)
            self._is_ready = False
            code = await self._exit_code()
            if ready_at is not None and time.monotonic() - ready_at > STEADY_S:
                backoff_s = FIRST_BACKOFF_S
            ready_at = None
            _log.error(
                "object store: process %s ended with code %s; starting it again in %.1f s (log: %s)",
                self.process.pid if self.process else "(none)",
                code,
                backoff_s,
                self._log_path,
            )
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
            try:
                self._leave_taken_ports()
                await self._launch()
            except (ObjectStoreError, OSError) as error:
                _log.error("object store: the start failed: %s", error)
            else:
                ready_at = time.monotonic()

    async def _exit_code(self) -> int | None:
        """Return the exit code of a child that has ended; None for a process of an earlier service."""
        if self._child is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):  # the process's first thread may end before others
            return await asyncio.to_thread(self._child.wait, REAP_TIMEOUT_S)
        return None

    async def _end_process(self) -> None:
        self._is_ready = False
        process = self.process
        if process is not None and not await asyncio.to_thread(weed_process.terminate, process, grace_s=STOP_GRACE_S):
            _log.error("object store: process %d does not end; it may still use %s", process.pid, self._data_folder)
        await self._exit_code()
        self._child = None
        if self._record is not None:
            if not self._process_is_alive():
                weed_process.remove_sockets(self._record.ports, data_folder=self._data_folder)
            self._record = StoreRecord(ports=self._record.ports)
            try:
                self._record.write(self._record_path)
            except OSError as error:  # the next service sees that the process in the record has ended
                _log.warning("object store: %s cannot be written: %s", self._record_path, error.strerror)

    def _take_lock(self) -> None:
        self._run_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (self._run_folder / "seaweed.lock").open("a", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise ObjectStoreError(
                f"embedded object store: another service uses {self._data_folder}; stop it (clary down) or set another "
                "home folder",
                fault=Fault.USER,
            ) from error
        self._lock = lock

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _replaced(ports: dict[str, int], taken: set[str], fresh: dict[str, int]) -> dict[str, int]:
    """Return `ports`, those named in `taken` replaced by fresh ones; log each."""
    blocked = weed_process.blocked_sockets(ports)
    for name in sorted(taken):
        _log.warning(
            "object store: port %d (%s) is taken by another %s; using %d. %s",
            ports[name],
            name,
            f"user's file {blocked[name]}" if name in blocked else "program",
            fresh[name],
            "Agents that still use the old endpoint will fail." if name == "s3" else "",
        )
    return {name: fresh[name] if name in taken else port for name, port in ports.items()}


async def _won_over(probe: Coroutine[Any, Any, None], end: Coroutine[Any, Any, None]) -> bool:
    """Run both until one returns; return whether the probe returned without an ObjectStoreError."""
    tasks = [asyncio.ensure_future(probe), asyncio.ensure_future(end)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    if isinstance(results[0], Exception) and not isinstance(results[0], ObjectStoreError):
        raise results[0]
    return results[0] is None


async def _ended(process: ProcessId) -> None:
    """Wait until a process has ended; without polling, unless no descriptor for it can be opened."""
    is_told = False
    while True:
        try:
            descriptor = os.pidfd_open(process.pid)
            break
        except ProcessLookupError:
            return
        except OSError as error:  # no descriptor is free; until one is, the store could not be started again either
            if not is_told:
                _log.warning("object store: process %d cannot be watched for now: %s", process.pid, error.strerror)
            is_told = True
        await asyncio.sleep(LOOK_INTERVAL_S)
    try:
        if process.is_alive():  # checked after the descriptor was opened, so the descriptor belongs to this process
            ended = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_reader(descriptor, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(descriptor)
    finally:
        os.close(descriptor)
