"""The top layer of the service: the listening parts that answer requests.

Where: `service` opens the doors once jobs are loaded, and closes them first.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

from clary.base.clock import SystemClock
from clary.control.full_disks import StoreDisk
from clary.control.objects import weed_process
from clary.control.objects.front import S3Front
from clary.control.server.actions.rehearsal_actions import RehearsalActions
from clary.control.server.authorization import Authorizer
from clary.control.server.aws_handler import AwsHandler
from clary.control.server.backup_keeping import BackupKeeper
from clary.control.server.clary_handler import ClaryHandler
from clary.control.server.console_files import ConsoleFiles
from clary.control.server.core import Core
from clary.control.server.edge.access import Access
from clary.control.server.edge.body_budget import BodyBudget
from clary.control.server.edge.connect_proxy import ConnectProxy
from clary.control.server.edge.connections import allowed_connections
from clary.control.server.edge.guesses import GuessLimiter
from clary.control.server.edge.handed_sockets import HandedSockets
from clary.control.server.edge.host_names import HostNames
from clary.control.server.edge.listener import Listener, settle
from clary.control.server.edge.sessions import Sessions
from clary.control.server.edge.sign_in import SignIn
from clary.control.server.edge.tls import ensure_certificates, server_context, service_names
from clary.control.server.foundations import Foundations
from clary.control.server.job_keys import JobKeys
from clary.control.server.pages.checkpoints_page import CheckpointPages
from clary.control.server.pages.downloads_page import DownloadsPage
from clary.control.server.pages.machine_page import MachinePage
from clary.control.server.pages.metrics_page import MetricsPage
from clary.control.server.pages.rehearsals_page import RehearsalPages
from clary.control.server.pages.stragglers_page import StragglerPages
from clary.control.server.pages.tuning_page import TuningPages
from clary.control.server.ports import nodes_host
from clary.control.server.routing import Parts
from clary.control.services.call import ObjectLookup, Services
from clary.control.settings import OWN_REGION, Settings
from clary.control.shared_words import shared_by_settings
from clary.control.state_folder import StateFolder
from clary.control.wire.routing import default_router
from clary.control.wire.signatures import SignatureVerifier


async def open_doors(
    stack: AsyncExitStack, base: Foundations, core: Core, backups: BackupKeeper, handed: HandedSockets
) -> Sequence[socket.socket]:
    """Start the S3 front, the listener and the proxy; return the sockets on which they listen.

    Args:
        stack: closes them in reverse order.
        base: the open settings, keys, ports and stores.
        core: the middle layer, whose jobs are loaded.
        backups: makes backups for the page that requests one.
        handed: listening sockets of the service whose place this one takes.
    Raises: ClaryError if one cannot listen.
    """
    settings, ports, services = base.settings, base.ports, core.services
    default_router()  # loads the service models now, not during the first request
    keys = JobKeys(base.secrets, core.hub, settings)
    names = HostNames(_own_names(settings), service_names(settings.region))
    front = S3Front(
        base.object_store,
        keys.find_secret,
        find_grants=keys.find_grants,
        account_id=settings.account_id,
        clock=base.clock,
        skew_s=settings.clock_skew_s,
        forward_encryption=bool(settings.s3_endpoint_url),
        bucket_of_own_host=names.bucket_of,
        region=settings.region if settings.s3_regions == OWN_REGION else None,
        note_known=settle,
        why_full=_store_disk(settings).why_unwritable if not settings.s3_endpoint_url else lambda: "",
        temporary=services.temporary_keys,
        public=core.public,
    )
    await front.start()
    stack.push_async_callback(front.close)
    aws_handler = _aws_handler(base, services, keys)
    own_pages = _own_pages(stack, base, core, backups)
    listener = Listener(
        settings.host,
        ports.api,
        aws_handler=aws_handler.handle,
        aws_gate=aws_handler.admit,
        s3_front=front,
        clary_handler=own_pages.handle,
        clary_gate=own_pages.admit,
        host_names=names,
        body_budget=BodyBudget(settings.body_budget_bytes),
        max_connections=allowed_connections(settings.max_connections),
        console_handler=ConsoleFiles().handle,
        max_body_bytes=settings.max_body_bytes,
        tls_context=_tls_context(settings),
        tls_port=ports.tls or 0,
        nodes_host=nodes_host(settings),
        handed=handed,
    )
    await listener.start()
    stack.push_async_callback(listener.close)
    if ports.tls is not None and ports.proxy is not None:
        own_names = service_names(settings.region)
        has_bucket = partial(_has_bucket, services.objects, settings.account_id)
        proxy = ConnectProxy(
            settings.host,
            tls_port=ports.tls,
            own_names=own_names,
            api_port=ports.api,
            policy=core.egress,
            has_bucket=has_bucket,
        )
        await proxy.start(ports.proxy, listening=handed.take(settings.host, ports.proxy))
        stack.push_async_callback(proxy.close)
        return [*listener.sockets, *([] if proxy.listening is None else [proxy.listening])]
    return listener.sockets


async def _has_bucket(objects: ObjectLookup, account_id: str, bucket: str) -> bool:
    """Return whether a bucket is this service's: it exists, or has the account's id, as the SDKs' own buckets do."""
    return account_id in bucket or await objects.has_bucket(bucket)


def _aws_handler(base: Foundations, services: Services, keys: JobKeys) -> AwsHandler:
    settings = base.settings
    verifier = SignatureVerifier(
        keys.find_secret,
        base.clock,
        skew_s=settings.clock_skew_s,
        journal=base.journal,
        temporary=services.temporary_keys,
    )
    return AwsHandler(services, verifier, find_grants=keys.find_grants, max_body_bytes=settings.max_body_bytes)


def _own_pages(stack: AsyncExitStack, base: Foundations, core: Core, backups: BackupKeeper) -> ClaryHandler:
    settings, secrets, clock, client = base.settings, base.secrets, base.clock, base.client
    guesses = GuessLimiter(clock)
    sessions = Sessions(secrets.session_key, base.folder.revoked_sessions, clock)
    checkpoints = CheckpointPages(client)
    stack.push_async_callback(checkpoints.close)
    boxes = None if core.source is None else core.source.boxes
    parts = Parts(
        services=core.services,
        agents=core.agents,
        pools=core.pools,
        samples=core.samples,
        training=core.training,
        market=core.market,
        backups=backups,
        machine=_machine_page(base, core),
        metrics=MetricsPage(core.hub, core.samples, clock),
        checkpoints=checkpoints,
        downloads=DownloadsPage(client, credentials=secrets.credentials, region=settings.region, clock=clock),
        stragglers=StragglerPages(core.services),
        tuning=TuningPages(core.services),
        cluster=core.cluster,
        rehearsals=RehearsalPages(core.services, core.rehearsing, core.faults),
        strikes=RehearsalActions(core.faults),
        sign_in=SignIn(sessions, admin_token=secrets.admin_token, guesses=guesses),
        shared=lambda has_network: shared_by_settings(settings, core.egress.reachable, has_network=has_network),
        engine=settings.engine,
        boxes=boxes,
    )
    authorizer = Authorizer(
        core.agents,
        core.pools,
        core.training,
        Access(sessions, admin_token=secrets.admin_token),
        metrics_token=secrets.metrics_token,
        metrics_page=settings.metrics_page,
        max_body_bytes=settings.max_body_bytes,
        boxes=boxes,
        engine=settings.engine,
    )
    return ClaryHandler(parts, authorizer, guesses)


def _machine_page(base: Foundations, core: Core) -> MachinePage | None:
    """Return the page of this machine; None if hosts are other machines."""
    if core.cluster is not None:
        return None
    return MachinePage(core.engine.capacity().machine, core.admission, core.hub, base.folder.root)


def _own_names(settings: Settings) -> list[str]:
    """Return the host names under which clients reach this machine; numeric addresses are always accepted."""
    own = [settings.host, nodes_host(settings), socket.gethostname()]
    return [*own, *settings.host_names.split(",")]


def _store_disk(settings: Settings) -> StoreDisk:
    return StoreDisk(
        settings.home_folder,
        min_free_share=weed_process.MIN_FREE_SHARE,
        look_s=weed_process.DISK_LOOK_S,
        monotonic=time.monotonic,
    )


def _tls_context(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls_port:
        return None
    folder = StateFolder(settings.home_folder).tls
    now = SystemClock().now()
    names = {"host": settings.host, "nodes_host": nodes_host(settings)}
    return server_context(ensure_certificates(folder, region=settings.region, now=now, **names))
