"""The embedded object store: one SeaweedFS process (`weed mini`) that belongs to a state folder.

Where: `clary up` starts it when no S3 endpoint is set; `front.S3Front` and agents talk to its endpoint. It keeps its
data in `<home>/objects`, its log in `<home>/run/seaweed.log`, its ports and process in `<home>/run/seaweed.json`.

[Note: who owns the process] The store runs in its own session, so that neither Ctrl-C nor a kill of the service ends
it: running agents go on with their direct endpoint. The next service adopts it if it answers, or stops it by the
recorded pid and starts another on the same ports. A lock on `<home>/run/seaweed.lock` keeps two services apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import subprocess
import time
from pathlib import Path
from typing import IO

from clary.contract.errors import Fault, ObjectStoreError
from clary.contract.launch_plan import Credentials, Endpoint
from clary.contract.processes import ProcessId
from clary.control.objects import weed_process
from clary.control.objects.store_client import StoreClient
from clary.control.objects.weed_process import StoreRecord

START_TIMEOUT_S = 30.0
ADOPT_TIMEOUT_S = 5.0
STOP_GRACE_S = 10.0  # SIGTERM to exit takes 3.6 s when all is well
PROBE_INTERVAL_S = 0.1
PORT_WAIT_S = 3.0
MAX_PORT_CHOICES = 4  # at one start, where ports are taken between choosing and binding
WATCH_INTERVAL_S = 0.2
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
STEADY_S = 60.0  # a store that lived this long starts again without back-off
LOG_TAIL_LINES = 20
MAX_LOG_BYTES = 8 * 1024 * 1024  # a longer log is moved to seaweed.log.1 at the next start

_log = logging.getLogger(__name__)


class EmbeddedStore:
    """Starts, adopts, watches and stops the store of one state folder.

    Args:
        home_folder: the service's state folder.
        credentials: the store's own key; only the service and its agents know it.
        region: region of the returned endpoint; the store accepts any.
        bucket: a bucket that is made at start and serves the readiness probe; the default bucket of the clients.
        start_timeout_s: seconds from the start of the process until a put, get and delete must have worked.
    """

    def __init__(
        self,
        home_folder: Path,
        *,
        credentials: Credentials,
        region: str = "us-west-2",
        bucket: str = "clary",
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._data_folder = home_folder / "objects"
        self._run_folder = home_folder / "run"
        self._record_path = self._run_folder / "seaweed.json"
        self._log_path = self._run_folder / "seaweed.log"
        self._credentials = credentials
        self._region = region
        self._bucket = bucket
        self._start_timeout_s = start_timeout_s
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
        return Endpoint(url=url, region=self._region, credentials=self._credentials)

    @property
    def is_ready(self) -> bool:
        """Whether the store answered its last probe and has not died since."""
        return self._is_ready

    @property
    def process(self) -> ProcessId | None:
        """The process that serves the folder now."""
        return None if self._record is None else self._record.process

    async def start(self) -> Endpoint:
        """Adopt the folder's running store or start one; return when objects can be written, read and deleted.

        Raises: ObjectStoreError with the end of the store's log if that fails within the deadline (then no process
        of it is left), or if another service holds the folder.
        """
        self._take_lock()
        try:
            if not await self._adopt():
                await self._launch_on_free_ports()
        except BaseException:
            self._release_lock()
            raise
        self._watcher = asyncio.create_task(self._watch(), name="seaweed-watch")
        return self.endpoint

    async def stop(self) -> None:
        """Stop watching, end the process (SIGTERM, then SIGKILL by pid) and free the folder; no-op if not started."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
        await self._end_process()
        self._release_lock()

    async def _adopt(self) -> bool:
        record = StoreRecord.read(self._record_path)
        if record is None or record.process is None or not record.process.is_alive():
            return False
        self._record = record
        if await self._becomes_ready(ADOPT_TIMEOUT_S):
            _log.info("object store: adopted the running process %d on %s", record.process.pid, self.endpoint.url)
            return True
        _log.warning(
            "object store: process %d of an earlier service does not answer within %.0f s; stopping it",
            record.process.pid,
            ADOPT_TIMEOUT_S,
        )
        await self._end_process()
        return False

    async def _launch_on_free_ports(self) -> None:
        """Choose ports and start a process; where it ends because one was taken meanwhile, choose again."""
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
        """Return the recorded ports, in place of those that stay taken new ones."""
        fresh = weed_process.choose_ports()
        record = StoreRecord.read(self._record_path)
        if record is None:
            return fresh
        # A process that was killed a moment ago is gone before its sockets are.
        deadline = time.monotonic() + PORT_WAIT_S
        taken: set[str] = set()
        while time.monotonic() < deadline and (taken := weed_process.taken_ports(record.ports)):  # noqa: ASYNC110
            await asyncio.sleep(PROBE_INTERVAL_S)
        for name in taken:
            _log.warning(
                "object store: port %d (%s) is taken by another program; using %d. %s",
                record.ports[name],
                name,
                fresh[name],
                "Agents that still use the old endpoint will fail." if name == "s3" else "",
            )
        return {name: fresh[name] if name in taken else port for name, port in record.ports.items()}

    async def _launch(self) -> None:
        """Start a process on the record's ports and wait until it is ready; on failure none is left."""
        assert self._record is not None
        program = weed_process.find_program()
        started_at = time.monotonic()
        try:
            self._child = self._spawn(program, self._record.ports)
            identity = ProcessId.of(self._child.pid)
            self._record = StoreRecord(ports=self._record.ports, process=identity)
            self._record.write(self._record_path)
            if not await self._becomes_ready(self._start_timeout_s):
                raise self._not_ready_error(time.monotonic() - started_at)
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
        # Weed writes its options there and would load them at the next start; the command line is the only source.
        (self._data_folder / "mini.options").unlink(missing_ok=True)
        if self._log_path.exists() and self._log_path.stat().st_size > MAX_LOG_BYTES:
            self._log_path.replace(self._log_path.with_suffix(".log.1"))
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._data_folder),  # else ~/.seaweedfs/*.toml of the user would change the store
            "AWS_ACCESS_KEY_ID": self._credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self._credentials.secret_access_key,
            "GOMEMLIMIT": weed_process.MEMORY_LIMIT,
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
                umask=0o077,  # its control sockets in /tmp would be open to every user
            )
        except OSError as error:
            raise ObjectStoreError(
                f"embedded object store: {program} can not be started: {error}", details={"program": program}
            ) from error
        finally:
            os.close(descriptor)

    async def _becomes_ready(self, timeout_s: float) -> bool:
        """Try a put, get and delete until they work; False at the deadline or as soon as the process is dead."""
        deadline = time.monotonic() + timeout_s
        async with StoreClient(self.endpoint, timeout_s=ADOPT_TIMEOUT_S) as client:
            while time.monotonic() < deadline and self._process_is_alive():
                try:
                    await asyncio.wait_for(client.probe(self._bucket), deadline - time.monotonic())
                except (ObjectStoreError, TimeoutError):
                    await asyncio.sleep(PROBE_INTERVAL_S)
                else:
                    self._is_ready = True
                    return True
        return False

    def _process_is_alive(self) -> bool:
        process = self.process
        return process is not None and process.is_alive()

    def _not_ready_error(self, waited_s: float) -> ObjectStoreError:
        assert self._record is not None
        is_alive = self._process_is_alive()
        how = "did not serve objects" if is_alive else "ended"
        # Asked of the kernel and not of the log, whose words change with the store's version.
        taken = () if is_alive else weed_process.taken_ports(self._record.ports)
        return ObjectStoreError(
            f"embedded object store: weed {how} after {waited_s:.1f} s (limit {self._start_timeout_s:.0f} s) in "
            f"{self._data_folder}; end of {self._log_path}:\n{self._log_tail()}",
            fault=Fault.INFRASTRUCTURE,
            retryable=True,
            details={
                "log": str(self._log_path),
                "taken_ports": ", ".join(f"port {self._record.ports[name]} ({name})" for name in sorted(taken)),
            },
        )

    def _log_tail(self) -> str:
        try:
            lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            return f"(not readable: {error})"
        return "\n".join(lines[-LOG_TAIL_LINES:])

    async def _watch(self) -> None:
        """Start the store again whenever it dies, with growing pauses while it dies soon after its start."""
        backoff_s = FIRST_BACKOFF_S
        ready_at = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if self._process_is_alive():
                continue
            self._is_ready = False
            code = self._child.poll() if self._child is not None else None
            if time.monotonic() - ready_at > STEADY_S:
                backoff_s = FIRST_BACKOFF_S
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
                await self._launch()
            except ObjectStoreError as error:
                _log.error("object store: the start failed: %s", error)
            else:
                ready_at = time.monotonic()

    async def _end_process(self) -> None:
        self._is_ready = False
        process = self.process
        if process is not None and not await asyncio.to_thread(weed_process.terminate, process, grace_s=STOP_GRACE_S):
            _log.error("object store: process %d does not end; it may still use %s", process.pid, self._data_folder)
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._child.wait, 1.0)
            self._child = None
        if self._record is not None:
            if not self._process_is_alive():
                weed_process.remove_sockets(self._record.ports)
            self._record = StoreRecord(ports=self._record.ports)
            self._record.write(self._record_path)

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
