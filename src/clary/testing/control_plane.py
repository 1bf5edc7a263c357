"""The service without its listener: real store, logs, hub, gateway and reconciler with a fake clock and fake hosts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from clary.base.errors import ObjectStoreError, WireError
from clary.contract.agent_protocol import (
    IS_LAST,
    HostFacts,
    HostPhase,
    LogBatch,
    LogReceipt,
    ProcessExit,
    Report,
    ReportReceipt,
)
from clary.contract.launch_plan import Credentials, Endpoint, Environment, Isolation
from clary.control.attentive_clock import AttentiveClock
from clary.control.jobs import deadlines
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.admission import Admission
from clary.control.reconcile.desks.dump_desk import DumpDesk
from clary.control.reconcile.desks.profile_desk import ProfileDesk
from clary.control.reconcile.gateways.agent_gateway import AgentGateway
from clary.control.reconcile.gateways.pool_gateway import PoolGateway
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.node_admission import NodeAdmission
from clary.control.reconcile.past_durations import PastDurations
from clary.control.reconcile.planning import Site
from clary.control.reconcile.pool_keeping import PoolKeeper
from clary.control.reconcile.queue_outlook import QueueOutlook
from clary.control.reconcile.reconciler import Reconciler
from clary.control.reconcile.spot_market import SpotMarket
from clary.control.services.call import Call, Services
from clary.control.services.dispatch import dispatch
from clary.control.services.query_desk import QueryDesk
from clary.control.services.tuning.tuning_keeper import TuningKeeper
from clary.control.settings import Settings
from clary.control.state_folder import RootSecrets, StateFolder
from clary.control.store.log_files.logs import LogStore
from clary.control.store.store import Store
from clary.testing.fake_clock import FakeClock
from clary.testing.fake_engine import FakeEngine
from clary.testing.fake_queue_engine import FakeQueueEngine

UNKNOWN_IMAGE = "nobody/knows:1"
LIMITS = deadlines.Limits(stop_grace_s=120, host_timeout_s=5, launch_timeout_s=60, upload_timeout_s=600)


class FakeObjects:
    """Reports every bucket and every prefix as existing, except the buckets in `missing`."""

    def __init__(self) -> None:
        self.missing: set[str] = set()

    async def has_objects(self, bucket: str, prefix: str) -> bool:
        """Return whether the bucket was not declared missing."""
        return bucket not in self.missing

    async def has_bucket(self, bucket: str) -> bool:
        """Return whether the bucket was not declared missing."""
        return bucket not in self.missing

    async def make_bucket(self, bucket: str) -> None:
        """Declare the bucket existing; refuses invalid names as object stores do."""
        if bucket != bucket.lower():
            raise ObjectStoreError(f"{bucket}: 400 InvalidBucketName", details={"bucket": bucket, "status": 400})
        self.missing.discard(bucket)


def request_of(name: str = "job", *, num_hosts: int = 1, **members: Any) -> dict[str, Any]:
    """Return a small CreateTrainingJob request; `members` replace or add members, or remove them if None."""
    request: dict[str, Any] = {
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::000000000000:role/R",
        "AlgorithmSpecification": {"TrainingImage": "generic:1", "ContainerEntrypoint": ["true"]},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": num_hosts, "VolumeSizeInGB": 1},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        **members,
    }
    return {member: value for member, value in request.items() if value is not None}


class ControlPlane:
    """All parts of the service between the wire and the hosts; `passes` runs one round of the reconciler."""

    def __init__(
        self, store: Store, logs: LogStore, *, clock: FakeClock, engine: FakeEngine, settings: Settings
    ) -> None:
        home = Path(settings.home)
        self.clock = clock
        self.engine = engine
        self.store = store
        self.logs = logs
        self.objects = FakeObjects()
        self.settings = settings
        self.hub = JobHub(store, clock)
        self.past = PastDurations()
        self.hub.listen(self.past.note)
        store.quarantine.listen(self.hub.doubt)
        self.dumps = DumpDesk(store.documents("dumps"), clock=clock)
        self.profiles = ProfileDesk(store.documents("profiles"), home / "profiles", clock=clock)
        self.attentive = AttentiveClock(clock)
        self.gateway = AgentGateway(
            self.hub, logs, store, self.dumps, clock, profiles=self.profiles, attentive=self.attentive
        )
        self.market = SpotMarket(self.hub, clock)
        self.why_no_disks: Callable[[int], str] = lambda size_bytes: ""
        queue = engine if isinstance(engine, FakeQueueEngine) else None
        self.admission: Admission
        if queue is None:
            self.admission = Admission(
                self.settings,
                engine.capacity().machine,
                self.hub,
                _resolve_image,
                self.market,
                clock,
                lambda size_bytes: self.why_no_disks(size_bytes),
            )
        else:
            nodes = queue.kinds
            self.admission = NodeAdmission(
                self.settings, lambda: nodes, "slurm", self.hub, _resolve_image, self.market, clock
            )
        key = Credentials(access_key_id="K", secret_access_key="S")  # noqa: S106 - not a secret
        secrets = RootSecrets(access_key_id="K", secret_access_key="S", admin_token="A", master_key="M")  # noqa: S106
        self.pool_gateway = PoolGateway(self.hub, clock, pool_token=secrets.pool_token, attentive=self.attentive)
        self.reconciler = Reconciler(
            hub=self.hub,
            engine=engine,
            admission=self.admission,
            market=self.market,
            gateway=self.gateway,
            pools=PoolKeeper(hub=self.hub, engine=engine, gateway=self.pool_gateway, clock=clock),
            logs=logs,
            site=Site(
                settings=self.settings,
                folder=StateFolder(home),
                secrets=secrets,
                object_store=Endpoint(url="http://127.0.0.1:1", region="us-west-2", credentials=key),
                service_url="http://127.0.0.1:2",
                proxy_url=None,
                isolation=Isolation.PROCESSES,
            ),
            clock=clock,
            limits=LIMITS,
            queue=queue,
        )
        self.services = Services(
            settings=self.settings,
            clock=clock,
            store=store,
            logs=logs,
            hub=self.hub,
            objects=self.objects,
            admission=self.admission,
            queue=QueueOutlook(self.hub, self.admission, self.past),
            work_folders=engine,
            dumps=self.dumps,
            profiles=self.profiles,
            log_queries=QueryDesk(logs, clock),
        )

        self.tuning_keeper = TuningKeeper(self.services)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        home: Path,
        *,
        clock: FakeClock | None = None,
        engine: FakeEngine | None = None,
        settings: Settings | None = None,
        last_alive_at: datetime | None = None,
    ) -> AsyncIterator[ControlPlane]:
        """Open a state folder; a second `open` restarts the service, with the hosts that the engine still has.

        Args:
            home: state folder; empty for a new service.
            clock: None makes a new clock.
            engine: None makes an engine without hosts.
            settings: None uses the defaults.
            last_alive_at: last sign of life of the service before this one, as its lease shows it.
        """
        clock = clock or FakeClock()
        store = await Store.open(home / "clary.db")
        logs = LogStore(home / "logs", clock=clock)
        try:
            plane = cls(
                store,
                logs,
                clock=clock,
                engine=engine or FakeEngine(),
                settings=settings or Settings(home=str(home)),
            )
            await plane.hub.load(last_alive_at=last_alive_at)
            yield plane
            await plane.services.log_queries.close()
        finally:
            await logs.close()
            await store.close()

    async def call(self, service: str, operation: str, **params: Any) -> Mapping[str, Any]:
        """Call an operation as the owner, without parsing and signatures."""
        call = Call(services=self.services, params=params, region="us-west-2", access_key_id="K", request_id="R")
        return await dispatch(service, operation, call)

    async def create(self, name: str = "job", *, num_hosts: int = 1, **members: Any) -> None:
        """Create a training job."""
        await self.call("sagemaker", "CreateTrainingJob", **request_of(name, num_hosts=num_hosts, **members))

    async def describe(self, name: str = "job") -> Mapping[str, Any]:
        """Describe a training job."""
        return await self.call("sagemaker", "DescribeTrainingJob", TrainingJobName=name)

    async def stop(self, name: str = "job") -> None:
        """Stop a training job."""
        await self.call("sagemaker", "StopTrainingJob", TrainingJobName=name)

    async def delete(self, name: str = "job") -> None:
        """Delete a training job."""
        await self.call("sagemaker", "DeleteTrainingJob", TrainingJobName=name)

    async def job(self, name: str = "job") -> TrainingJob:
        """Return a job from the store."""
        job = await self.store.get_job(name)
        assert job is not None, f"{name} is not stored"
        return job

    async def passes(self, count: int = 1) -> None:
        """Let the reconciler process every job, and wait for its background tasks."""
        for _ in range(count):
            await self.reconciler.make_pass()
            while tasks := [task for task in asyncio.all_tasks() if task.get_name().startswith("job:")]:
                await asyncio.wait(tasks)

    async def tuning_passes(self, count: int = 1) -> None:
        """Let the tuning keeper process every tuning job that has not ended."""
        for _ in range(count):
            self.tuning_keeper.wake_all()
            await self.tuning_keeper.look_at_due()

    def agent(self, name: str = "job", host: str = "algo-1", *, attempt: int = 1) -> FakeAgent:
        """Return a new agent of a host; the agent has the job's agent token.

        Args:
            name: name of a live job that is placed on hosts.
            host: such as algo-1.
            attempt: number of the attempt that the agent claims to belong to.
        """
        job = self.hub.live_job(name)
        assert job is not None, f"{name} has ended"
        assert job.plan is not None, f"{name} has no hosts"
        return FakeAgent(self, name, host, attempt=attempt, token=job.plan["agent_token"])

    async def run_to_end(self, name: str = "job", *, exit_code: int = 0, num_hosts: int = 1) -> None:
        """Drive a placed job through all phases to its end, until its hosts are released.

        Args:
            name: name of the job.
            exit_code: exit code of the program on every host.
            num_hosts: number of hosts of the job, algo-1 to algo-N.
        """
        await self.passes()
        agents = [self.agent(name, f"algo-{index + 1}") for index in range(num_hosts)]
        for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
            for agent in agents:
                await agent.report(phase)
        for phase in (HostPhase.EXITED, HostPhase.DONE):
            for agent in reversed(agents):
                self.clock.advance(1)
                await agent.report(phase, exits=(self.exit_of(exit_code),), uploaded=agent.model_uris(phase))
        self.engine.end_all_agents(name)
        await self.passes()

    async def leave(self, agent: FakeAgent) -> None:
        """Let a released agent end, or return to its pool."""
        job = self.hub.live_job(agent.name)
        order = job.hosts[agent.host].order if job is not None and agent.host in job.hosts else None
        if job is not None and order is not None and not order.arguments.get(IS_LAST):
            served = f"{agent.name}:{agent.attempt}"
            await self.pool_gateway.next_assignment(job.pool, agent.host, after=served, wait_s=0)
        else:
            self.engine.end_agent(agent.name, agent.host, attempt=agent.attempt)

    def exit_of(self, code: int) -> ProcessExit:
        """Return the end of a process."""
        return ProcessExit(
            rank=None,
            local_rank=0,
            pid=2,
            exit_code=code,
            signal=None,
            ended_at=self.clock.now(),
            is_consequence=False,
        )


class FakeAgent:
    """Calls the gateway as an agent does, with its token in every call."""

    def __init__(self, plane: ControlPlane, name: str, host: str, *, attempt: int, token: str) -> None:
        self._plane = plane
        self.name = name
        self.host = host
        self.attempt = attempt
        self.token = token
        self._number = 0
        self._facts = HostFacts(phase=HostPhase.LAUNCHING, phase_started_at=plane.clock.now())

    def authorize(self) -> TrainingJob:
        """Authenticate the agent at the gateway; raises WireError."""
        return self._plane.gateway.authorize(self.name, self.attempt, self.host, self.token)

    async def report(self, phase: HostPhase | None = None, **facts: Any) -> ReportReceipt:
        """Report new facts; without arguments repeat the last facts, as a heartbeat."""
        if phase is not None:
            self._facts = replace(self._facts, phase=phase, phase_started_at=self._plane.clock.now(), **facts)
        self._number += 1
        report = Report(number=self._number, facts=self._facts)
        return await self._plane.gateway.report(self.authorize(), self.host, report)

    async def send_logs(self, batch: LogBatch) -> LogReceipt:
        """Send log lines."""
        return await self._plane.gateway.append_logs(self.authorize(), self.host, batch)

    def model_uris(self, phase: HostPhase) -> tuple[str, ...]:
        """Return the URI of the uploaded model if the host is the leader and done, else an empty tuple."""
        is_leader = phase is HostPhase.DONE and self.host == "algo-1"
        plan = self.authorize().plan or {}
        return (plan["output"]["model_uri"],) if is_leader else ()


def _resolve_image(image: str) -> tuple[Environment, tuple[str, ...]]:
    if image == UNKNOWN_IMAGE:
        raise WireError("ValidationException", f"no environment stands for {image}")
    return Environment(name="default", python="/env/bin/python", image=image), ()
