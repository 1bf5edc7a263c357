"""One API call, and the parts of the service that its handler may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from clary.base.clock import Clock
from clary.control.jobs.training_job import TrainingJob
from clary.control.permissions.grants import Grants
from clary.control.permissions.temporary_keys import TemporaryKeys
from clary.control.reconcile.admission import Admitted
from clary.control.reconcile.desks.dump_desk import DumpDesk
from clary.control.reconcile.desks.profile_desk import ProfileDesk
from clary.control.reconcile.desks.rehearsal_desk import RehearsalDesk
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.queue_outlook import QueueOutlook
from clary.control.scheduling.prices import PriceList, load_prices
from clary.control.services.query_desk import QueryDesk
from clary.control.settings import Settings
from clary.control.store.log_files.logs import LogStore
from clary.control.store.store import Store


class ObjectLookup(Protocol):
    """The part of the object store's client that handlers use to look up objects and buckets."""

    async def has_objects(self, bucket: str, prefix: str) -> bool:
        """Return whether any key of the bucket starts with the prefix; False for a bucket that does not exist."""

    async def has_bucket(self, bucket: str) -> bool:
        """Return whether a bucket exists."""

    async def make_bucket(self, bucket: str) -> None:
        """Make a bucket unless it exists; raises ObjectStoreError."""


class Admission(Protocol):
    """Decides, before a job is stored, whether it could ever run here."""

    has_host_networks: bool  # whether each job has a network of its own

    def admit(self, request: Mapping[str, Any]) -> Admitted:
        """Return notes on a job for Describe: warnings, and differences between the request and this machine.

        Raises: WireError(ResourceLimitExceeded), WireError(ValidationException) for a job that can never run here.
        """

    def pending_reason(self, job: TrainingJob) -> str:
        """Return why a job waits, or an empty text."""


class WorkFolders(Protocol):
    """Removes the folders of jobs' attempts."""

    async def forget(self, job_name: str) -> None:
        """Remove the work folders of a job whose hosts are released."""


class TuningBell:
    """Wakes the loop of tuning jobs for one tuning job; does nothing without listeners, as in tests of handlers."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str], None]] = []

    def connect(self, listener: Callable[[str], None]) -> None:
        """Register a listener, which is called with the name of each tuning job to handle."""
        self._listeners.append(listener)

    def wake(self, name: str) -> None:
        """Make the loop handle a tuning job now."""
        for listener in self._listeners:
            listener(name)


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of the service that handlers may use."""

    settings: Settings
    clock: Clock
    store: Store
    logs: LogStore
    hub: JobHub
    objects: ObjectLookup
    admission: Admission
    queue: QueueOutlook
    work_folders: WorkFolders
    dumps: DumpDesk
    profiles: ProfileDesk
    log_queries: QueryDesk
    prices: PriceList = field(default_factory=load_prices)
    temporary_keys: TemporaryKeys = field(default_factory=TemporaryKeys.forgotten)
    rehearsals: RehearsalDesk | None = None
    tuning: TuningBell = field(default_factory=TuningBell)

    async def find_job(self, name: str) -> TrainingJob | None:
        """Return the job of a name, live or stored; None if unknown."""
        return self.hub.live_job(name) or await self.store.get_job(name)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One authenticated, parsed and validated call."""

    services: Services
    params: Mapping[str, Any]
    region: str
    access_key_id: str
    request_id: str
    unknown_members: tuple[str, ...] = ()  # paths of request members that this release's model lacks
    grants: Grants | None = None  # grants of a job's key; None for a key that permits everything
    holder: str = ""  # ROLE/SESSION of a temporary key that AssumeRole made

    def arn(self, resource: str) -> str:
        """Return the SageMaker ARN of `resource` in the caller's region."""
        return f"arn:aws:sagemaker:{self.region}:{self.services.settings.account_id}:{resource}"


Handler = Callable[[Call], Awaitable[Mapping[str, Any]]]
