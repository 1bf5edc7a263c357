"""The service, assembled: object store, database, reconciler and listener, started in order and ended in reverse.

Where: `python -m clary.control.server` runs it; `clary up` starts that in the background.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from clary import __version__
from clary.base.clock import SystemClock
from clary.base.errors import ContractError, Fault, StoreError
from clary.base.processes import ProcessId
from clary.contract.launch_plan import Credentials, Endpoint
from clary.control.client_files import SAGEMAKER_CONFIG, sagemaker_config
from clary.control.egress.policy import EgressPolicy
from clary.control.engines.images import resolve
from clary.control.engines.interpreters import InterpreterProbe
from clary.control.engines.local.engine import LocalEngine
from clary.control.engines.local.rehearsal_faults import LocalFaults
from clary.control.full_disks import why_full
from clary.control.jobs import deadlines, events
from clary.control.jobs.training_job import EndCause
from clary.control.objects.front import S3Front
from clary.control.objects.lookup import ObjectLookup
from clary.control.objects.seaweed import EmbeddedStore
from clary.control.objects.store_client import StoreClient
from clary.control.reconcile.admission import Admission
from clary.control.reconcile.desks.dump_desk import DumpDesk
from clary.control.reconcile.desks.profile_desk import ProfileDesk
from clary.control.reconcile.desks.profile_keeping import keep_profiles
from clary.control.reconcile.desks.rehearsal_desk import RehearsalDesk
from clary.control.reconcile.desks.rehearsal_shelf import RehearsalShelf
from clary.control.reconcile.gateways.agent_gateway import AgentGateway
from clary.control.reconcile.gateways.pool_gateway import PoolGateway
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.control.reconcile.gateways.training_gateway import TrainingGateway
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.log_cleaning import keep_removing
from clary.control.reconcile.past_durations import LAST_COMPLETED, PastDurations
from clary.control.reconcile.planning import Site
from clary.control.reconcile.pool_keeping import PoolKeeper
from clary.control.reconcile.profiler_rules import ProfilerRules
from clary.control.reconcile.queue_outlook import QueueOutlook
from clary.control.reconcile.reconciler import Reconciler
from clary.control.reconcile.rule_notices import RuleNotices
from clary.control.reconcile.series_keeping import keep_series
from clary.control.reconcile.spot_market import SpotMarket
from clary.control.reconcile.trace_exporter import TraceExporter
from clary.control.reconcile.unowned_hosts import UnownedHosts
from clary.control.scheduling.prices import load_prices
from clary.control.scheduling.spot import SpotSchedule, load_schedule
from clary.control.server.actions.rehearsal_actions import RehearsalActions
from clary.control.server.authorization import Authorizer
from clary.control.server.aws_handler import AwsHandler
from clary.control.server.backup_keeping import BackupKeeper
from clary.control.server.clary_handler import ClaryHandler
from clary.control.server.console_files import ConsoleFiles
from clary.control.server.edge.access import Access
from clary.control.server.edge.body_budget import BodyBudget
from clary.control.server.edge.connect_proxy import ConnectProxy
from clary.control.server.edge.connections import allowed_connections
from clary.control.server.edge.guesses import GuessLimiter
from clary.control.server.edge.host_names import HostNames
from clary.control.server.edge.listener import Listener, settle
from clary.control.server.edge.sessions import Sessions
from clary.control.server.edge.sign_in import SignIn
from clary.control.server.edge.tls import ensure_certificates, server_context, service_names
from clary.control.server.egress_site import egress_policy
from clary.control.server.job_keys import JobKeys
from clary.control.server.ownership import cancel, database_lease, sole_owner
from clary.control.server.pages.checkpoints_page import CheckpointPages
from clary.control.server.pages.downloads_page import DownloadsPage
from clary.control.server.pages.machine_page import MachinePage
from clary.control.server.pages.metrics_page import MetricsPage
from clary.control.server.pages.rehearsals_page import RehearsalPages
from clary.control.server.pages.stragglers_page import StragglerPages
from clary.control.server.ports import Ports, choose_ports
from clary.control.server.routing import Parts
from clary.control.server.start_notes import noted
from clary.control.server.state_files import keep_files
from clary.control.services.call import Services
from clary.control.services.query_desk import QueryDesk
from clary.control.settings import OWN_REGION, Settings
from clary.control.shared_words import shared_by_settings
from clary.control.state_folder import RootSecrets, ServiceRecord, StateFolder
from clary.control.store.database_life import DatabaseLife
from clary.control.store.documents.document_folders import take_over
from clary.control.store.documents.numbered_documents import REQUEST
from clary.control.store.log_files.logs import LogStore
from clary.control.store.store import Store
from clary.control.wire.replay_journal import ReplayJournal, read_boot_id
from clary.control.wire.routing import default_router
from clary.control.wire.signatures import SignatureVerifier

log = logging.getLogger(__name__)

DOWN_GRACE_S = 10.0  # for programs of running jobs when the service is told to leave
DOWN_DEADLINE_S = 45.0  # for their results to reach the object store


async def run_service(
    settings: Settings, *, leave: asyncio.Event, begins_anew: bool = False, makes_keys: bool = False
) -> None:
    """Run until `leave` is set, then end running jobs and everything that was started.

    Args:
        settings: of the service.
        leave: set when it is to leave.
        begins_anew: whether it may begin with a new database where the folder has lived with one.
        makes_keys: whether it shall begin with new keys where the folder has lived with others.

    Raises: ClaryError if something could not be started; what was started before it is ended.
    """
    folder = StateFolder(settings.home_folder)
    folder.create()
    if why := why_full(folder.root):
        # Nothing could be acknowledged. What runs, the object store too, is better left alone than ended and not begun.
        raise StoreError(f"the service does not start: {why}", fault=Fault.INFRASTRUCTURE, retryable=True)
    is_first = not folder.has_secrets
    clock = SystemClock()
    prices = load_prices(settings.prices_file)
    async with AsyncExitStack() as stack:
        stack.enter_context(sole_owner(folder))
        secrets = folder.load_secrets(begins_anew=makes_keys)
        journal = ReplayJournal(
            folder.used_signatures,
            skew_s=settings.clock_skew_s,
            now=clock.now(),
            is_first=is_first,
            boot_id=read_boot_id(),
        )
        stack.callback(journal.close)
        ports = choose_ports(settings, _former_service(folder))
        urls = ports.urls(settings)
        object_store, file_keepers = await _object_store(stack, settings, folder, secrets, leave=leave)
        life = DatabaseLife(folder.root, keep=settings.num_backups, begins_anew=begins_anew)
        store = await Store.open(settings.resolved_database_url, life=life)
        stack.push_async_callback(store.close)
        await stack.enter_async_context(database_lease(store, folder, leave))
        logs = LogStore(folder.logs, retention_days=settings.log_retention_days)
        stack.push_async_callback(logs.close)
        log_queries = QueryDesk(logs, clock)
        stack.push_async_callback(log_queries.close)
        client = await stack.enter_async_context(StoreClient(object_store))
        await client.ensure_bucket(settings.default_bucket)
        notices = RuleNotices(settings.rule_webhook_url)
        hub = JobHub(store, clock)
        hub.listen(notices.on_change)
        traces = TraceExporter(settings.otlp_endpoint, headers=settings.otlp_headers, region=settings.region)
        hub.listen(lambda _, job: traces.take(job))
        store.quarantine.listen(hub.doubt)
        past = PastDurations()
        past.load((await store.cards.page(LAST_COMPLETED, now=clock.now())).cards)
        hub.listen(past.note)
        await hub.load()

        egress = await asyncio.to_thread(
            egress_policy, settings, folder, os.environ, ports=ports, object_store=object_store
        )
        engine = LocalEngine(settings, urls.api, relayed_urls=[urls.proxy] if urls.proxy else [], egress=egress)
        unowned = UnownedHosts(hub, engine, store)
        stack.push_async_callback(unowned.close)
        await unowned.take_back()
        resolve_image = partial(resolve, settings=settings, probe=InterpreterProbe(home=folder.root))
        market = SpotMarket(hub, clock, _spot_schedule(settings))
        faults = LocalFaults(engine, settings.home_folder)
        admission = Admission(settings, engine.machine(), hub, resolve_image, market, clock, faults.why_no_disks)
        await take_over(folder.root / "dumps", store.documents("dumps"), first=REQUEST)
        await take_over(folder.root / "profiles", store.documents("profiles"), first=REQUEST, keeps_files=True)
        dumps = DumpDesk(store.documents("dumps"), clock=clock)
        profiles = ProfileDesk(store.documents("profiles"), folder.root / "profiles", clock=clock)
        shelf = RehearsalShelf(folder.root / "rehearsals")
        rehearsing = RehearsalDesk(shelf, hub, clock, home=folder.root, grace_s=settings.stop_grace_s)
        services = Services(
            settings=settings,
            clock=clock,
            store=store,
            logs=logs,
            hub=hub,
            objects=ObjectLookup(client, clock),
            admission=admission,
            queue=QueueOutlook(hub, admission, past),
            work_folders=engine,
            dumps=dumps,
            profiles=profiles,
            log_queries=log_queries,
            prices=prices,
            rehearsals=rehearsing,
            temporary_keys=secrets.temporary_keys,
        )
        memory_limits = engine.memory_limits()
        isolation = engine.isolation()[0]  # makes a network to find out: before anybody waits for an answer
        gateway = AgentGateway(hub, logs, store, dumps, clock, profiles=profiles)
        samples = SampleGateway(store.series, clock)
        training = TrainingGateway(hub, store.training, store, clock)
        pool_gateway = PoolGateway(hub, clock, pool_token=secrets.pool_token)
        checkpoints = CheckpointPages(client)
        stack.push_async_callback(checkpoints.close)
        guesses = GuessLimiter(clock)
        sessions = Sessions(secrets.session_key, folder.revoked_sessions, clock)
        backups = BackupKeeper(store, life, clock, interval_s=settings.backup_interval_s)
        parts = Parts(
            services=services,
            agents=gateway,
            pools=pool_gateway,
            samples=samples,
            training=training,
            market=market,
            backups=backups,
            machine=MachinePage(engine.machine(), admission, hub, folder.root),
            metrics=MetricsPage(hub, samples, clock),
            checkpoints=checkpoints,
            downloads=DownloadsPage(client, credentials=secrets.credentials, region=settings.region, clock=clock),
            stragglers=StragglerPages(services),
            rehearsals=RehearsalPages(services, rehearsing, faults),
            strikes=RehearsalActions(faults),
            sign_in=SignIn(sessions, admin_token=secrets.admin_token, guesses=guesses),
            shared=lambda has_network: shared_by_settings(settings, egress.reachable, has_network=has_network),
        )
        authorizer = Authorizer(
            gateway,
            pool_gateway,
            training,
            Access(sessions, admin_token=secrets.admin_token),
            metrics_token=secrets.metrics_token,
            metrics_page=settings.metrics_page,
            max_body_bytes=settings.max_body_bytes,
        )
        handler = ClaryHandler(parts, authorizer, guesses)
        await rehearsing.load()
        stack.push_async_callback(rehearsing.interrupt)
        keys = JobKeys(secrets, hub, settings)
        verifier = SignatureVerifier(
            keys.find_secret,
            clock,
            skew_s=settings.clock_skew_s,
            journal=journal,
            temporary=services.temporary_keys,
        )
        aws_handler = AwsHandler(
            services, verifier, find_grants=keys.find_grants, max_body_bytes=settings.max_body_bytes
        )
        await _listen(
            stack,
            services,
            aws_handler,
            handler,
            ports=ports,
            keys=keys,
            object_store=object_store,
            egress=egress,
        )
        (folder.client / SAGEMAKER_CONFIG).write_text(sagemaker_config(settings))
        reconciler = Reconciler(
            hub=hub,
            engine=engine,
            admission=admission,
            market=market,
            gateway=gateway,
            pools=PoolKeeper(hub=hub, engine=engine, gateway=pool_gateway, clock=clock),
            logs=logs,
            site=Site(
                settings=settings,
                folder=folder,
                secrets=secrets,
                object_store=object_store,
                service_url=urls.api,
                proxy_url=urls.proxy or None,
                isolation=isolation,
            ),
            clock=clock,
            limits=_limits(settings),
        )
        stack.push_async_callback(cancel, asyncio.create_task(notices.send_all(), name="rule-notices"))
        stack.push_async_callback(cancel, asyncio.create_task(backups.run(), name="backups"))
        stack.push_async_callback(cancel, asyncio.create_task(traces.send_all(), name="trace-export"))
        stack.push_async_callback(cancel, asyncio.create_task(reconciler.run(), name="reconciler"))
        stack.push_async_callback(cancel, asyncio.create_task(keep_removing(logs, hub), name="log-cleaning"))
        keeping = keep_series(store.series, samples, settings, clock)
        stack.push_async_callback(cancel, asyncio.create_task(keeping, name="series-keeping"))
        profile_keeping = keep_profiles(profiles, hub, store.get_job, client)
        stack.push_async_callback(cancel, asyncio.create_task(profile_keeping, name="profile-keeping"))
        profiler_rules = ProfilerRules(hub, store, store.series, client, clock=clock)
        stack.push_async_callback(cancel, asyncio.create_task(profiler_rules.run(), name="profiler-rules"))
        me = ProcessId.of(os.getpid())
        assert me is not None, "this process exists"
        record = ServiceRecord(
            pid=me.pid,
            process_started=me.started,
            url=urls.api,
            tls_url=urls.tls,
            proxy_url=urls.proxy,
            region=settings.region,
            version=__version__,
            memory_limits=memory_limits,
        )
        folder.write_service_record(record)
        files = keep_files(folder, record, secrets, others=file_keepers)
        stack.push_async_callback(cancel, asyncio.create_task(files, name="state-files"))
        stack.callback(_forget_address, folder, hub)
        log.info("clary %s answers at %s (isolation: %s)", __version__, urls.api, isolation.value)
        log.info("memory limits of hosts are %s", memory_limits)
        await leave.wait()
        await rehearsing.interrupt()  # before their jobs end, which would look like a verdict
        await _end_jobs(hub, reconciler)


def _former_service(folder: StateFolder) -> ServiceRecord | None:
    """Return the record of the last service about itself; the folder's lock shows that it has ended."""
    try:
        return folder.read_service_record()
    except ContractError as error:
        log.warning("%s; this service takes the ports that are free, and finds what runs by itself", error.message)
        return None


def _spot_schedule(settings: Settings) -> SpotSchedule | None:
    """Read the schedule of spot capacity. Raises: ContractError that names the fault in it."""
    if not settings.spot_schedule_file:
        return None
    return load_schedule(Path(settings.spot_schedule_file).expanduser(), time_scale=settings.spot_time_scale)


async def _listen(
    stack: AsyncExitStack,
    services: Services,
    aws_handler: AwsHandler,
    handler: ClaryHandler,
    *,
    ports: Ports,
    keys: JobKeys,
    object_store: Endpoint,
    egress: EgressPolicy,
) -> None:
    """Start the S3 front, the listener and the proxy."""
    settings = services.settings
    default_router()  # reads the service models now and not within the first request
    names = HostNames(_own_names(settings), service_names(settings.region))
    front = S3Front(
        object_store,
        keys.find_secret,
        find_grants=keys.find_grants,
        account_id=settings.account_id,
        clock=services.clock,
        skew_s=settings.clock_skew_s,
        forward_encryption=bool(settings.s3_endpoint_url),
        bucket_of_own_host=names.bucket_of,
        region=settings.region if settings.s3_regions == OWN_REGION else None,
        note_known=settle,
        why_full=partial(why_full, settings.home_folder) if not settings.s3_endpoint_url else lambda: "",
        temporary=services.temporary_keys,
    )
    await front.start()
    stack.push_async_callback(front.close)
    listener = Listener(
        settings.host,
        ports.api,
        aws_handler=aws_handler.handle,
        aws_gate=aws_handler.admit,
        s3_front=front,
        clary_handler=handler.handle,
        clary_gate=handler.admit,
        host_names=names,
        body_budget=BodyBudget(settings.body_budget_bytes),
        max_connections=allowed_connections(settings.max_connections),
        console_handler=ConsoleFiles().handle,
        max_body_bytes=settings.max_body_bytes,
        tls_context=_tls_context(settings),
        tls_port=ports.tls or 0,
    )
    await listener.start()
    stack.push_async_callback(listener.close)
    if ports.tls is not None and ports.proxy is not None:
        proxy = ConnectProxy(
            settings.host,
            tls_port=ports.tls,
            own_names=service_names(settings.region),
            policy=egress,
        )
        await proxy.start(ports.proxy)
        stack.push_async_callback(proxy.close)


async def _object_store(
    stack: AsyncExitStack, settings: Settings, folder: StateFolder, secrets: RootSecrets, *, leave: asyncio.Event
) -> tuple[Endpoint, Sequence[Callable[[], None]]]:
    """Return the endpoint of the object store, and the keepers of an embedded store's files."""
    if settings.s3_endpoint_url:
        key, secret = settings.s3_access_key_id, settings.s3_secret_access_key
        if not key or not secret:
            raise ContractError(
                "s3_endpoint_url is set, but s3_access_key_id or s3_secret_access_key is not", fault=Fault.USER
            )
        credentials = Credentials(access_key_id=key, secret_access_key=secret)
        return Endpoint(url=settings.s3_endpoint_url, region=settings.region, credentials=credentials), ()
    embedded = EmbeddedStore(
        folder.root, credentials=secrets.store_credentials, region=settings.region, bucket=settings.default_bucket
    )
    words = f"the object store, as long as that shows life (its log is run/seaweed.log in {folder.root})"
    endpoint = await noted(embedded.start(), what=words, leave=leave)
    stack.push_async_callback(embedded.stop)
    return endpoint, (embedded.keep_record,)


def _own_names(settings: Settings) -> list[str]:
    """Return the names under which this machine is reached; a numeric address needs no name."""
    return [settings.host, socket.gethostname(), *settings.host_names.split(",")]


def _tls_context(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls_port:
        return None
    folder = StateFolder(settings.home_folder).tls
    now = SystemClock().now()
    return server_context(ensure_certificates(folder, region=settings.region, host=settings.host, now=now))


def _limits(settings: Settings) -> deadlines.Limits:
    return deadlines.Limits(
        stop_grace_s=settings.stop_grace_s,
        host_timeout_s=settings.host_timeout_s,
        launch_timeout_s=settings.launch_timeout_s,
        upload_timeout_s=settings.upload_timeout_s,
    )


def _forget_address(folder: StateFolder, hub: JobHub) -> None:
    """Remove the record of this service; jobs that run on look for the next one at the address that stands there."""
    if not hub.active_jobs():
        folder.service_record_path.unlink(missing_ok=True)


async def _end_jobs(hub: JobHub, reconciler: Reconciler) -> None:
    """Stop running jobs and wait for their results; jobs that wait go on waiting for the next service.

    A job whose stop cannot be stored, on a full disk say, runs on: nobody has written down that it was to end.
    """
    reconciler.is_draining = True
    told = {job.name for job in hub.active_jobs() if await _is_told_to_stop(hub, job.name)}
    deadline = asyncio.get_running_loop().time() + DOWN_DEADLINE_S
    while (left := [job.name for job in hub.active_jobs() if job.name in told]) and (
        left_s := deadline - asyncio.get_running_loop().time()
    ) > 0:
        await hub.wait_for_job(left[0], left_s)
    try:
        await reconciler.give_pools_back()
    except StoreError as error:
        log.warning("hosts of waiting jobs could not be given back; the next service does it: %s", error.message)
    for name in left:
        log.warning("job %s has not ended within %.0f s; the next service takes it up", name, DOWN_DEADLINE_S)


async def _is_told_to_stop(hub: JobHub, name: str) -> bool:
    try:
        await hub.apply(name, events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=DOWN_GRACE_S))
    except StoreError as error:
        log.warning("job %s could not be told to stop and runs on; the next service takes it up: %s", name, error)
        return False
    return True
