"""The middle layer of the service: jobs, hosts, and the parts that manage both.

Where: `service` builds it on `foundations`; `doors` answers requests with it. Construction has no side effects.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from clary.contract.launch_plan import Isolation
from clary.control.attentive_clock import AttentiveClock
from clary.control.egress.policy import EgressPolicy
from clary.control.engines.cluster.cluster_faults import ClusterFaults
from clary.control.engines.images import resolve
from clary.control.engines.interpreters import InterpreterProbe
from clary.control.engines.local.engine import LocalEngine
from clary.control.engines.local.rehearsal_faults import LocalFaults
from clary.control.jobs import deadlines
from clary.control.objects.lookup import ObjectLookup
from clary.control.reconcile.admission import Admission
from clary.control.reconcile.desks.dump_desk import DumpDesk
from clary.control.reconcile.desks.profile_desk import ProfileDesk
from clary.control.reconcile.desks.rehearsal_desk import RehearsalDesk
from clary.control.reconcile.desks.rehearsal_shelf import RECORD, RehearsalShelf
from clary.control.reconcile.gateways.agent_gateway import AgentGateway
from clary.control.reconcile.gateways.pool_gateway import PoolGateway
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.control.reconcile.gateways.training_gateway import TrainingGateway
from clary.control.reconcile.granting import expect_boots
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.node_admission import NodeAdmission
from clary.control.reconcile.past_durations import LAST_COMPLETED, PastDurations
from clary.control.reconcile.planning import Site
from clary.control.reconcile.pool_keeping import PoolKeeper
from clary.control.reconcile.queue_outlook import QueueOutlook
from clary.control.reconcile.reconciler import Reconciler
from clary.control.reconcile.rule_notices import RuleNotices
from clary.control.reconcile.spot_market import SpotMarket
from clary.control.reconcile.trace_exporter import TraceExporter
from clary.control.reconcile.unowned_hosts import UnownedHosts
from clary.control.scheduling.prices import PriceList
from clary.control.scheduling.spot import SpotSchedule, load_schedule
from clary.control.server.egress_site import public_buckets
from clary.control.server.foundations import Foundations
from clary.control.server.host_source import other_machines, require_same_engine
from clary.control.services.call import Services
from clary.control.settings import Settings
from clary.control.store.documents.document_folders import take_over
from clary.control.store.documents.numbered_documents import REQUEST

REMOTE_TIMEOUT_S = 15.0
# Folders of numbered documents in releases before 0.1 -> the name of the first document in each.
_OLD_FOLDERS = {"dumps": REQUEST, "profiles": REQUEST, "rehearsals": RECORD}


class Core:
    """Parts that manage jobs; `load` reads the jobs and finds their hosts.

    Args:
        base: the open store, logs and keys.
        egress: policy for hosts' connections to other networks.
        prices: prices of hosts.
    """

    def __init__(self, base: Foundations, egress: EgressPolicy, prices: PriceList) -> None:
        settings, clock, store, root = base.settings, base.clock, base.store, base.folder.root
        urls = base.ports.urls(settings)
        self._base = base
        self.egress = egress
        self.public = public_buckets(settings, egress)
        self.hub = hub = JobHub(store, clock)
        self.notices = RuleNotices(settings.rule_webhook_url)
        self.traces = TraceExporter(settings.otlp_endpoint, headers=settings.otlp_headers, region=settings.region)
        attentive = AttentiveClock(clock)
        self.source = source = other_machines(base, attentive)
        self.cluster = None if source is None else source.engine
        local = LocalEngine(settings, urls.api, relayed_urls=[urls.proxy] if urls.proxy else [], egress=egress)
        self.engine = local if source is None else source.engine
        resolve_image = partial(resolve, settings=settings, probe=InterpreterProbe(home=root))
        self.market = SpotMarket(hub, clock, _spot_schedule(settings))
        self.faults = LocalFaults(local, settings.home_folder) if source is None else ClusterFaults(source.engine)
        self.admission: Admission
        if source is None:
            capacity, why_no_disks = local.capacity(), self.faults.why_no_disks
            self.admission = Admission(
                settings,
                capacity.machine,
                hub,
                resolve_image,
                self.market,
                clock,
                why_no_disks,
                has_host_networks=capacity.isolation is Isolation.NAMESPACES,
            )
        else:
            engine = source.engine
            self.admission = NodeAdmission(
                settings, lambda: engine.kinds, engine.scheduler.name, hub, resolve_image, self.market, clock
            )
        dumps = DumpDesk(store.documents("dumps"), clock=clock)
        profiles = ProfileDesk(store.documents("profiles"), root / "profiles", clock=clock)
        shelf = RehearsalShelf(store.documents("rehearsals"), root / "rehearsals")
        self.rehearsing = RehearsalDesk(shelf, hub, clock, home=root, grace_s=settings.stop_grace_s)
        self.agents = AgentGateway(
            hub,
            base.logs,
            store,
            dumps,
            clock,
            profiles=profiles,
            attentive=attentive,
            objects=base.object_flush,
        )
        claims = None if source is None else source.engine.enrolments
        self.pools = PoolGateway(hub, clock, pool_token=base.secrets.pool_token, claims=claims, attentive=attentive)
        self.samples = SampleGateway(store.series, clock)
        self.training = TrainingGateway(hub, store.training, store, clock)
        self._past = PastDurations()
        self.services = Services(
            settings=settings,
            clock=clock,
            store=store,
            logs=base.logs,
            hub=hub,
            objects=ObjectLookup(base.client, clock, self.public),
            admission=self.admission,
            queue=QueueOutlook(hub, self.admission, self._past),
            work_folders=self.engine,
            dumps=dumps,
            profiles=profiles,
            log_queries=base.log_queries,
            prices=prices,
            rehearsals=self.rehearsing,
            temporary_keys=base.secrets.temporary_keys,
        )

    async def load(self, stack: AsyncExitStack) -> None:
        """Load all jobs, release hosts that no job owns, and end rehearsals of an earlier run of the service."""
        hub, store = self.hub, self._base.store
        await self._take_over_folders()
        hub.listen(self.notices.on_change)
        hub.listen(lambda _, job: self.traces.take(job))
        store.quarantine.listen(hub.doubt)
        self._past.load((await store.cards.page(LAST_COMPLETED, now=self._base.clock.now())).cards)
        hub.listen(self._past.note)
        await hub.load(last_alive_at=self._base.lease.former_alive_at)
        holders = [job.name for job in hub.active_jobs() if job.pool or job.hosts]
        holders += [job.name for job in hub.waiting_jobs().values() if job.pool]
        require_same_engine(self._base.folder, self._base.settings.engine, holders)
        if self.cluster is not None:
            expect_boots(hub, self.cluster.enrolments)
            await self.cluster.start()
            stack.push_async_callback(self.cluster.scheduler.close)
        self.unowned = UnownedHosts(hub, self.engine, store)
        stack.push_async_callback(self.unowned.close)
        await self.unowned.take_back()
        await self.rehearsing.load()
        stack.push_async_callback(self.rehearsing.interrupt)

    async def _take_over_folders(self) -> None:
        """Move documents that an earlier release kept in folders into the database."""
        for kind, first in _OLD_FOLDERS.items():
            folder = self._base.folder.root / kind
            await take_over(folder, self._base.store.documents(kind), first=first, keeps_files=kind != "dumps")

    def reconciler(self, isolation: Isolation) -> Reconciler:
        """Return the reconciler, which moves jobs through their life cycle; hosts in its plans have this isolation."""
        base, settings = self._base, self._base.settings
        urls = base.ports.urls(settings)
        site = Site(
            settings=settings,
            folder=base.folder,
            secrets=base.secrets,
            object_store=base.object_store,
            service_url=urls.nodes or urls.api,
            proxy_url=urls.proxy or None if self.source is None else None,  # nodes do not use this machine's proxy
            isolation=isolation,
            is_remote=self.source is not None,
            signals_all=self.source is not None and self.source.signals_all,
        )
        return Reconciler(
            hub=self.hub,
            engine=self.engine,
            admission=self.admission,
            market=self.market,
            gateway=self.agents,
            pools=PoolKeeper(hub=self.hub, engine=self.engine, gateway=self.pools, clock=base.clock),
            logs=base.logs,
            site=site,
            clock=base.clock,
            limits=_limits(settings),
            queue=self.cluster,
        )


def _spot_schedule(settings: Settings) -> SpotSchedule | None:
    """Read the schedule of spot capacity. Raises: ContractError that names the fault in the schedule."""
    if not settings.spot_schedule_file:
        return None
    return load_schedule(Path(settings.spot_schedule_file).expanduser(), time_scale=settings.spot_time_scale)


def _limits(settings: Settings) -> deadlines.Limits:
    host_timeout_s = settings.host_timeout_s
    if settings.engine != "local":  # over a real network, a healthy host may miss three heartbeats
        host_timeout_s = max(host_timeout_s, REMOTE_TIMEOUT_S)
    return deadlines.Limits(
        stop_grace_s=settings.stop_grace_s,
        host_timeout_s=host_timeout_s,
        launch_timeout_s=settings.launch_timeout_s,
        upload_timeout_s=settings.upload_timeout_s,
    )
