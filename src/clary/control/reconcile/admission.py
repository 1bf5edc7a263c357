"""Admission of requests: whether a request could ever run on this machine, why it waits, and its hosts here.

Where: CreateTrainingJob calls `admit` before it stores a job, DescribeTrainingJob calls `pending_reason`, the
reconciler calls `decide_next`. `scheduling` contains the policies; this module supplies their facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from clary.base.clock import Clock
from clary.base.errors import WireError
from clary.contract.launch_plan import Environment
from clary.contract.rehearsals import DISKS_VARIABLE, disk_bytes
from clary.control.file_systems import located, require_folder
from clary.control.jobs import warm_pools
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.spot_market import SpotMarket
from clary.control.scheduling.catalogue import lookup
from clary.control.scheduling.host_shares import WHOLE
from clary.control.scheduling.machine import Machine
from clary.control.scheduling.placement import (
    Capacity,
    Decision,
    Holding,
    HostMapping,
    InstanceGroup,
    Need,
    Wait,
    behind,
    capacity_of,
    decide,
    map_hosts,
    refuse_if_too_large,
)
from clary.control.settings import Settings

ResolveImage = Callable[[str], tuple[Environment, tuple[str, ...]]]


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """Notes for users on a job that can run here."""

    warnings: tuple[str, ...]
    emulation: tuple[str, ...]  # differences between the request and this machine with its environment


class Admission:
    """Admits requests by the machine, the settings and the running jobs.

    Args:
        settings: settings of the service.
        machine: machine that hosts share.
        hub: knows the jobs.
        resolve_image: returns the environment that replaces an image, with notes.
        market: the spot market.
        clock: clock of the service.
        why_no_disks: takes a total size in bytes; returns why private disks of that size for a rehearsal's hosts are
            not available, or an empty string if they are.
        has_host_networks: whether each job has a network of its own.
    """

    def __init__(
        self,
        settings: Settings,
        machine: Machine,
        hub: JobHub,
        resolve_image: ResolveImage,
        market: SpotMarket,
        clock: Clock,
        why_no_disks: Callable[[int], str] = lambda size_bytes: "this service makes none",
        *,
        has_host_networks: bool = True,
    ) -> None:
        self.has_host_networks = has_host_networks
        self._why_no_disks = why_no_disks
        self._settings = settings
        self._market = market
        self._clock = clock
        self._machine = machine
        self._hub = hub
        self._resolve_image = resolve_image
        self._capacity = capacity_of(machine, settings)

    @property
    def _has_hosts_here(self) -> bool:
        """Whether hosts run on the service's own machine."""
        return True

    @property
    def decides_order(self) -> bool:
        """Whether this service decides on the order of waiting jobs, and so can estimate their starts."""
        return True

    @property
    def capacity(self) -> Capacity:
        """The capacity of the machine for all jobs together."""
        return self._capacity

    def admit(self, request: Mapping[str, Any]) -> Admitted:
        """Return the notes on the request's mapping to this machine.

        Raises: WireError(ResourceLimitExceeded) for a request that can never fit, may not run so long, or asks for too
            large a warm pool; ValidationException for an unknown image, and for unavailable disks of a rehearsal or
            file systems.
        """
        job = JobRequest(request)
        _, image_notes = self._resolve_image(job.image)
        mapping = self.mapping(job)
        self._check_size(job, mapping)
        self._check_runtime_limit(job)
        self._check_warm_pool_limit(job)
        self._check_disks(request, mapping)
        for channel in job.channels:
            file_systems = self._settings.file_systems
            require_folder(
                located(channel, file_systems), home=self._settings.home_folder, is_here=self._has_hosts_here
            )
        return Admitted(warnings=mapping.warnings, emulation=(*mapping.notes, *image_notes))

    def environment(self, image: str) -> Environment:
        """Return the environment that replaces an image."""
        return self._resolve_image(image)[0]

    def mapping(self, job: JobRequest) -> HostMapping:
        """Return the job's hosts on this machine."""
        groups = [
            InstanceGroup(name=group.name, instance_type=group.instance_type, num_hosts=group.instance_count)
            for group in job.instance_groups
        ]
        shapes = {
            group.instance_type: lookup(group.instance_type, self._settings.instance_types, machine=self._machine)
            for group in groups
        }
        return map_hosts(groups, shapes, machine=self._machine, settings=self._settings, share=job.host_share)

    def decide_next(self, job: TrainingJob, mapping: HostMapping, *, leaving: Sequence[TrainingJob] = ()) -> Decision:
        """Decide on the next waiting job, which may use the hosts of `leaving`: ended jobs with waiting hosts.

        Args:
            job: the next job of the queue.
            mapping: mapping of the job's request.
            leaving: holders of pools that would be ended for the job, or that the job takes over.
        """
        not_counted = {job.name, *(other.name for other in leaving)}
        holdings = [holding for holding in self.holdings() if holding.job_name not in not_counted]
        return decide(Need.of(job.name, mapping), holdings, capacity=self._capacity)

    def pending_reason(self, job: TrainingJob) -> str:
        """Return why a job waits, or an empty string for a job that does not wait."""
        waiting = self._hub.waiting_jobs()
        if job.name not in waiting:
            return ""
        if reason := self.why_held_back(job):
            return reason
        ahead = [
            other.name
            for other in takewhile(lambda other: other.name != job.name, waiting.values())
            if not self.why_held_back(other)
        ]
        if ahead:
            return behind(ahead)
        coming = warm_pools.coming_for(job, self._hub.active_jobs(), now_of=self._hub.now_of)
        if coming is not None:
            return f"The hosts of the warm pool that {coming.name} left are being put in order."
        decision = self.decide_next(job, self.mapping(JobRequest(job.request)))
        return decision.reason if isinstance(decision, Wait) else ""

    def why_held_back(self, job: TrainingJob) -> str:
        """Return why younger jobs may pass a waiting job for now; empty if they may not."""
        if job.not_before is not None and (left_s := (job.not_before - self._hub.now_of(job)).total_seconds()) > 0:
            return f"Pauses before it is tried again: {max(1, round(left_s))} s."
        return self._market.why_wait(job)

    def holdings(self) -> list[Holding]:
        """Return the resources held by jobs with hosts, and by waiting jobs with a pool of their own."""
        # A job that is retried on hosts of its own pool holds them while it waits.
        returning = [job for job in self._hub.waiting_jobs().values() if job.pool]
        return [self.holding(job) for job in (*self._hub.active_jobs(), *returning)]

    def holding(self, job: TrainingJob) -> Holding:
        """Return the number of hosts, the GPUs and the memory that a job holds, or its pool while it waits."""
        request = JobRequest(job.request)
        return Holding(
            job_name=job.name,
            num_hosts=len(job.hosts) or request.num_hosts,
            gpu_indices=job.held_gpus,
            memory_bytes=self._memory_held(job),
            share=request.host_share,
            of_gpu=WHOLE if request.host_share == WHOLE else self.mapping(request).of_gpu,
        )

    def _check_size(self, job: JobRequest, mapping: HostMapping) -> None:
        refusal = refuse_if_too_large(Need.of(job.name, mapping), self.holdings(), capacity=self._capacity)
        if refusal is not None:
            raise WireError("ResourceLimitExceeded", refusal.reason)

    def _check_disks(self, request: Mapping[str, Any], mapping: HostMapping) -> None:
        needed_bytes = sum(disk_bytes(request, host.name) or 0 for host in mapping.hosts)
        if needed_bytes and (why := self._why_no_disks(needed_bytes)):
            raise WireError(
                "ValidationException",
                f"{DISKS_VARIABLE} in Environment asks for a disk of its own for each host: {why}.",
            )

    def _check_runtime_limit(self, job: JobRequest) -> None:
        limit_s = self._settings.max_runtime_s
        if job.max_runtime_s > limit_s:
            raise WireError(
                "ResourceLimitExceeded",
                f"The account-level service limit 'Longest run time for a training job' is {limit_s} Seconds, "
                f"with current utilization of 0 Seconds and a request delta of {job.max_runtime_s} Seconds. "
                "Please contact AWS support to request an increase for this limit. On this service the "
                "setting max_runtime_s is the limit.",
            )

    def _check_warm_pool_limit(self, job: JobRequest) -> None:
        limit = self._settings.warm_pool_max_hosts
        if job.keep_alive_s == 0 or limit == 0 or job.num_hosts <= limit:
            return
        kept = sum(len(other.hosts) for other in self._hub.active_jobs() if warm_pools.is_available(other))
        raise WireError(
            "ResourceLimitExceeded",
            f"The account-level service limit '{job.instance_groups[0].instance_type} for training warm "
            f"pool usage' is {limit} Instances, with current utilization of {kept} Instances and a "
            f"request delta of {job.num_hosts} Instances. Please contact AWS support to request an "
            "increase for this limit. On this service the setting warm_pool_max_hosts is the limit.",
        )

    def _memory_held(self, job: TrainingJob) -> int:
        if job.plan is None:  # the job waits with hosts of its own pool
            return self.mapping(JobRequest(job.request)).memory_bytes
        return sum(host["resources"]["memory_bytes"] or 0 for host in job.plan.get("hosts", ()))
