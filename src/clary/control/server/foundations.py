"""The lowest layer of the service: its state folder, keys, object store, database and logs, opened in order.

Where: `service` opens these first and closes them last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from clary.base.clock import Clock, SystemClock
from clary.base.errors import ContractError, Fault, StoreError
from clary.contract.launch_plan import Credentials, Endpoint
from clary.control.folder_flush import FolderFlush
from clary.control.full_disks import why_unwritable
from clary.control.objects.seaweed import EmbeddedStore
from clary.control.objects.store_client import StoreClient
from clary.control.server.edge.handed_sockets import HandedSockets
from clary.control.server.ownership import HeldLease, database_lease, sole_owner
from clary.control.server.ports import Ports, choose_ports
from clary.control.server.start_notes import noted
from clary.control.server.succession import Leave
from clary.control.services.query_desk import QueryDesk
from clary.control.settings import Settings
from clary.control.state_folder import RootSecrets, ServiceRecord, StateFolder
from clary.control.store.database_life import DatabaseLife
from clary.control.store.log_files.logs import LogStore
from clary.control.store.store import Store
from clary.control.wire.replay_journal import ReplayJournal, read_boot_id

log = logging.getLogger(__name__)

FIRST_FLUSH_S = 5.0  # after the start, which it would slow down


@dataclass(frozen=True, kw_only=True)
class Foundations:
    """The state folder with its keys, the object store, the database and the logs, all open."""

    settings: Settings
    folder: StateFolder
    clock: Clock
    secrets: RootSecrets
    journal: ReplayJournal
    ports: Ports
    object_store: Endpoint
    file_keepers: Sequence[Callable[[], None]]  # restore damaged files of an embedded object store
    object_flush: FolderFlush | None  # of an embedded object store
    life: DatabaseLife
    lease: HeldLease
    store: Store
    logs: LogStore
    log_queries: QueryDesk
    client: StoreClient


async def open_foundations(
    stack: AsyncExitStack,
    settings: Settings,
    *,
    leave: Leave,
    begins_anew: bool,
    makes_keys: bool,
    handed: HandedSockets,
) -> Foundations:
    """Lock the state folder; open its keys, object store, database and logs.

    Args:
        stack: closes all parts.
        settings: settings of the service.
        leave: set when the service has to stop, here if the lease of the database is lost.
        begins_anew: whether the service may create a new database although the folder had one.
        makes_keys: whether the service may create new keys although the folder had others.
        handed: listening sockets of the service whose place this one takes.

    Raises: ClaryError if a part could not be opened.
    """
    folder = StateFolder(settings.home_folder)
    folder.create()
    if why := why_unwritable(folder.root):
        # No write would succeed. Running processes, also the object store, are not touched: they could not be
        # restarted.
        raise StoreError(f"the service does not start: {why}", fault=Fault.INFRASTRUCTURE, retryable=True)
    is_first = not folder.has_secrets
    clock = SystemClock()
    owner = stack.enter_context(sole_owner(folder))
    secrets = folder.load_secrets(begins_anew=makes_keys)
    skew_s, boot_id = settings.clock_skew_s, read_boot_id()
    journal = ReplayJournal(folder.used_signatures, skew_s=skew_s, now=clock.now(), is_first=is_first, boot_id=boot_id)
    stack.callback(journal.close)
    ports = choose_ports(settings, _former_service(folder), handed=handed)
    object_store, embedded = await _object_store(stack, settings, folder, secrets, leave=leave)
    life = DatabaseLife(folder.root, keep=settings.num_backups, begins_anew=begins_anew)
    store = await Store.open(settings.resolved_database, life=life)
    stack.push_async_callback(store.close)
    lease = await stack.enter_async_context(database_lease(store, owner, leave, jobs_go_on=lambda: leave.keeps_jobs))
    logs = LogStore(folder.logs, retention_days=settings.log_retention_days)
    stack.push_async_callback(logs.close)
    log_queries = QueryDesk(logs, clock)
    stack.push_async_callback(log_queries.close)
    object_flush = None if embedded is None else _object_flush(stack, embedded)
    client = await stack.enter_async_context(StoreClient(object_store))
    await client.ensure_bucket(settings.default_bucket)
    return Foundations(
        settings=settings,
        folder=folder,
        clock=clock,
        secrets=secrets,
        journal=journal,
        ports=ports,
        object_store=object_store,
        file_keepers=() if embedded is None else (embedded.keep_record,),
        object_flush=object_flush,
        life=life,
        lease=lease,
        store=store,
        logs=logs,
        log_queries=log_queries,
        client=client,
    )


def _object_flush(stack: AsyncExitStack, embedded: EmbeddedStore) -> FolderFlush:
    """Return the flush of the store's files, and flush all of them soon; later flushes only flush changed files."""
    flush = FolderFlush(embedded.data_folder)
    soon = asyncio.get_running_loop().call_later(FIRST_FLUSH_S, flush.begin, "objects of earlier jobs")
    stack.callback(soon.cancel)
    return flush


def _former_service(folder: StateFolder) -> ServiceRecord | None:
    """Return the record of the folder's last service; it has ended, because this process holds the lock."""
    try:
        return folder.read_service_record()
    except ContractError as error:
        log.warning("%s; this service uses free ports, and looks for running processes itself", error.message)
        return None


async def _object_store(
    stack: AsyncExitStack, settings: Settings, folder: StateFolder, secrets: RootSecrets, *, leave: Leave
) -> tuple[Endpoint, EmbeddedStore | None]:
    """Return the endpoint of the object store, and the embedded store, if it is one."""
    if settings.s3_endpoint_url:
        key, secret = settings.s3_access_key_id, settings.s3_secret_access_key
        if not key or not secret:
            raise ContractError(
                "s3_endpoint_url is set, but s3_access_key_id or s3_secret_access_key is not", fault=Fault.USER
            )
        credentials = Credentials(access_key_id=key, secret_access_key=secret)
        return Endpoint(url=settings.s3_endpoint_url, region=settings.region, credentials=credentials), None
    embedded = EmbeddedStore(
        folder.root, credentials=secrets.store_credentials, region=settings.region, bucket=settings.default_bucket
    )
    words = f"the object store, as long as that shows life (its log is run/seaweed.log in {folder.root})"
    endpoint = await noted(embedded.start(), what=words, leave=leave)
    stack.push_async_exit(partial(_end_store, embedded, leave))
    return endpoint, embedded


async def _end_store(
    embedded: EmbeddedStore,
    leave: Leave,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Stop the store, unless agents of jobs that outlive this service need it: the next service adopts it."""
    # A start that failed has ended no job.
    if leave.keeps_jobs or (error is not None and embedded.is_adopted):
        await embedded.leave()
    else:
        await embedded.stop()
