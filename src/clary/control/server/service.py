"""The service, assembled: object store, database, reconciler and listener, started in order and ended in reverse.

Where: `python -m clary.control.server` runs it; `clary up` starts that in the background. One service owns a state
folder at a time (a lock file) and a database at a time (a lease).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

from clary import __version__
from clary.contract.clock import SystemClock
from clary.contract.errors import ContractError, EngineError, Fault, StoreError
from clary.contract.launch_plan import Credentials, Endpoint
from clary.contract.processes import ProcessId
from clary.control.client_files import SAGEMAKER_CONFIG, sagemaker_config
from clary.control.engines.images import resolve
from clary.control.engines.interpreters import InterpreterProbe
from clary.control.engines.local.engine import LocalEngine
from clary.control.jobs import deadlines, events
from clary.control.jobs.training_job import EndCause
from clary.control.objects.front import S3Front
from clary.control.objects.lookup import ObjectLookup
from clary.control.objects.seaweed import EmbeddedStore
from clary.control.objects.store_client import StoreClient
from clary.control.reconcile.admission import Admission
from clary.control.reconcile.agent_gateway import AgentGateway
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.planning import Site
from clary.control.reconcile.reconciler import Reconciler
from clary.control.server.agent_routes import AgentRoutes
from clary.control.server.aws_handler import AwsHandler
from clary.control.server.clary_handler import ClaryHandler
from clary.control.server.listener import Listener
from clary.control.server.people_routes import PeopleRoutes
from clary.control.server.tls import endpoints_file, ensure_certificates, server_context
from clary.control.services.call import Services
from clary.control.settings import Settings
from clary.control.state_folder import JOB_KEY_PREFIX, RootSecrets, ServiceRecord, StateFolder
from clary.control.store.leases import Lease
from clary.control.store.logs import LogStore
from clary.control.store.store import Store
from clary.control.wire.signatures import SignatureVerifier

log = logging.getLogger(__name__)

DOWN_GRACE_S = 10.0  # for programs of running jobs when the service is told to leave
DOWN_DEADLINE_S = 45.0  # for their results to reach the object store
LEASE_NAME = "service"
LEASE_TTL_S = 30.0
LEASE_RENEWAL_S = 10.0


async def run_service(settings: Settings, *, leave: asyncio.Event) -> None:
    """Run until `leave` is set, then end running jobs and everything that was started.

    Raises: ClaryError if something could not be started; what was started before it is ended.
    """
    folder = StateFolder(settings.home_folder)
    folder.create()
    secrets = folder.load_secrets()
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        stack.enter_context(_sole_owner(folder))
        object_store = await _object_store(stack, settings, folder, secrets)
        store = await Store.open(settings.resolved_database_url)
        stack.push_async_callback(store.close)
        await stack.enter_async_context(_database_lease(store, leave))
        logs = LogStore(folder.logs)
        stack.push_async_callback(logs.close)
        client = await stack.enter_async_context(StoreClient(object_store))
        await client.ensure_bucket(settings.default_bucket)

        hub = JobHub(store, clock)
        await hub.load()
        gateway = AgentGateway(hub, logs, store, clock)
        listening, port = _bound_port(settings, folder)
        url = f"http://{settings.host}:{port}"
        engine = LocalEngine(settings, url)
        resolve_image = partial(resolve, settings=settings, probe=InterpreterProbe())
        admission = Admission(settings, engine.machine(), hub, resolve_image)
        services = Services(
            settings=settings,
            clock=clock,
            store=store,
            logs=logs,
            hub=hub,
            objects=ObjectLookup(client, clock),
            admission=admission,
            work_folders=engine,
        )
        find_secret = partial(_find_secret, secrets, hub)
        verifier = SignatureVerifier(find_secret, clock, skew_s=settings.clock_skew_s)
        front = S3Front(
            object_store,
            find_secret,
            account_id=settings.account_id,
            clock=clock,
            skew_s=settings.clock_skew_s,
            forward_encryption=bool(settings.s3_endpoint_url),
        )
        await front.start()
        stack.push_async_callback(front.close)
        listener = Listener(
            settings.host,
            port,
            aws_handler=AwsHandler(services, verifier).handle,
            s3_front=front,
            clary_handler=ClaryHandler(
                AgentRoutes(gateway), PeopleRoutes(services, admin_token=secrets.admin_token)
            ).handle,
            max_body_bytes=settings.max_body_bytes,
            tls_context=_tls_context(settings, folder),
            tls_port=settings.tls_port,
        )
        listening.close()
        await listener.start()
        stack.push_async_callback(listener.close)
        tls_url = f"https://localhost:{listener.tls_port}" if listener.tls_port else ""
        _write_client_files(settings, folder, listener.tls_port)

        site = Site(
            settings=settings,
            folder=folder,
            secrets=secrets,
            object_store=object_store,
            service_url=url,
            isolation=engine.isolation()[0],
        )
        reconciler = Reconciler(
            hub=hub,
            engine=engine,
            admission=admission,
            gateway=gateway,
            logs=logs,
            site=site,
            clock=clock,
            limits=deadlines.Limits(
                stop_grace_s=settings.stop_grace_s,
                host_timeout_s=settings.host_timeout_s,
                launch_timeout_s=settings.launch_timeout_s,
                upload_timeout_s=settings.upload_timeout_s,
            ),
        )
        loop_task = asyncio.create_task(reconciler.run(), name="reconciler")
        stack.push_async_callback(_cancel, loop_task)
        folder.write_service_record(_record(settings, url, tls_url))
        stack.callback(folder.service_record_path.unlink, missing_ok=True)
        log.info("clary %s answers at %s (isolation: %s)", __version__, url, site.isolation.value)
        await leave.wait()
        await _end_jobs(hub, reconciler)


@contextlib.contextmanager
def _sole_owner(folder: StateFolder) -> Iterator[None]:
    path = folder.root / "run" / "service.lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EngineError(
                f"another service runs for {folder.root}; stop it with: clary down", fault=Fault.USER
            ) from error
        yield


async def _object_store(
    stack: AsyncExitStack, settings: Settings, folder: StateFolder, secrets: RootSecrets
) -> Endpoint:
    if settings.s3_endpoint_url:
        key, secret = settings.s3_access_key_id, settings.s3_secret_access_key
        if not key or not secret:
            raise ContractError(
                "s3_endpoint_url is set, but s3_access_key_id or s3_secret_access_key is not", fault=Fault.USER
            )
        credentials = Credentials(access_key_id=key, secret_access_key=secret)
        return Endpoint(url=settings.s3_endpoint_url, region=settings.region, credentials=credentials)
    embedded = EmbeddedStore(
        folder.root, credentials=secrets.store_credentials, region=settings.region, bucket=settings.default_bucket
    )
    endpoint = await embedded.start()
    stack.push_async_callback(embedded.stop)
    return endpoint


@asynccontextmanager
async def _database_lease(store: Store, leave: asyncio.Event) -> AsyncIterator[None]:
    """Hold the database's service lease; losing it ends the service, since another one moves the jobs now."""
    owner = f"{socket.gethostname()}:{os.getpid()}"
    deadline = asyncio.get_running_loop().time() + LEASE_TTL_S + LEASE_RENEWAL_S
    while (lease := await store.acquire_lease(LEASE_NAME, owner, LEASE_TTL_S)) is None:
        # The lease of a service that was killed runs out by itself; that of a living one never does.
        if asyncio.get_running_loop().time() > deadline:
            raise StoreError("another service moves the jobs of this database; stop it, or use another database")
        await asyncio.sleep(1)
    task = asyncio.create_task(_renew(store, lease, leave), name="lease")
    try:
        yield
    finally:
        await _cancel(task)
        with contextlib.suppress(StoreError):
            await store.release_lease(lease)


async def _renew(store: Store, lease: Lease, leave: asyncio.Event) -> None:
    while True:
        await asyncio.sleep(LEASE_RENEWAL_S)
        try:
            lease = await store.renew_lease(lease, LEASE_TTL_S)
        except StoreError:
            log.exception("the lease of the database is lost; leaving")
            leave.set()
            return


def _find_secret(secrets: RootSecrets, hub: JobHub, access_key_id: str) -> str | None:
    """Return the secret of the owner's key, or of the key of an attempt whose hosts still exist."""
    if access_key_id == secrets.access_key_id:
        return secrets.secret_access_key
    if access_key_id.startswith(JOB_KEY_PREFIX):
        for job in hub.active_jobs():
            if job.plan is not None and job.plan["job_endpoint"]["credentials"]["access_key_id"] == access_key_id:
                return secrets.job_secret(access_key_id)
    return None


def _bound_port(settings: Settings, folder: StateFolder) -> tuple[socket.socket, int]:
    """Hold the port while the rest is assembled: its number is needed before the listener can answer.

    A service that was killed left its record: running hosts and agents know its port, so port 0 takes that one again.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    left = folder.read_service_record() if settings.port == 0 else None
    if left is not None:
        with contextlib.suppress(OSError):
            listening.bind((settings.host, urlsplit(left.url).port or 0))
            return listening, listening.getsockname()[1]
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        raise EngineError(
            f"can not listen on {settings.host}:{settings.port}: {error.strerror}; stop what uses it, or set port",
            fault=Fault.USER,
        ) from error
    return listening, listening.getsockname()[1]


def _tls_context(settings: Settings, folder: StateFolder) -> ssl.SSLContext | None:
    if not settings.tls_port:
        return None
    now = SystemClock().now()
    return server_context(ensure_certificates(folder.tls, region=settings.region, host=settings.host, now=now))


def _write_client_files(settings: Settings, folder: StateFolder, tls_port: int | None) -> None:
    (folder.client / SAGEMAKER_CONFIG).write_text(sagemaker_config(settings))
    if tls_port is not None:
        endpoints_file(folder.client / "models", region=settings.region, tls_port=tls_port)


def _record(settings: Settings, url: str, tls_url: str) -> ServiceRecord:
    me = ProcessId.of(os.getpid())
    assert me is not None, "this process exists"
    return ServiceRecord(
        pid=me.pid,
        process_started=me.started,
        url=url,
        tls_url=tls_url,
        region=settings.region,
        version=__version__,
    )


async def _end_jobs(hub: JobHub, reconciler: Reconciler) -> None:
    """Stop running jobs and wait for their results; jobs that wait go on waiting for the next service."""
    reconciler.is_draining = True
    jobs = hub.active_jobs()
    for job in jobs:
        await hub.apply(job.name, events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=DOWN_GRACE_S))
    deadline = asyncio.get_running_loop().time() + DOWN_DEADLINE_S
    while hub.active_jobs() and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
        await hub.wait_for_job(hub.active_jobs()[0].name, left_s)
    for job in hub.active_jobs():
        log.warning("job %s has not ended within %.0f s; the next service takes it up", job.name, DOWN_DEADLINE_S)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
