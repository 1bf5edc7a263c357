"""Admission of requests if hosts are whole nodes.

Where: takes the place of `admission` with engines slurm and boxes. One host is one node; `engines.cluster.node_kinds`
chooses the kind of node that serves an instance type. The engine's queue decides which job comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from clary.base.clock import Clock
from clary.base.errors import WireError
from clary.contract.launch_plan import Link
from clary.contract.settings.hyperparameters import HOST_SHARE
from clary.control.engines.cluster.node_kinds import choose_known, counts, why_unsure
from clary.control.engines.cluster.scheduler import NodeKind
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.admission import Admission, ResolveImage
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.spot_market import SpotMarket
from clary.control.scheduling.catalogue import InstanceShape, lookup
from clary.control.scheduling.host_shares import WHOLE
from clary.control.scheduling.machine import Machine
from clary.control.scheduling.placement import Capacity, HostMapping, HostShare, InstanceGroup, map_hosts
from clary.control.settings import Settings

NODE_RESERVE = 0.05  # share of a node's memory left to its system and the agent


class NodeAdmission(Admission):
    """Admits requests by the kinds of nodes.

    Args:
        settings: settings of the service.
        kinds: returns the present kinds of nodes.
        engine_name: slurm or boxes, for refusals.
        hub: knows the jobs.
        resolve_image: returns the environment that replaces an image.
        market: the spot market.
        clock: measures waits.
    """

    def __init__(
        self,
        settings: Settings,
        kinds: Callable[[], Sequence[NodeKind]],
        engine_name: str,
        hub: JobHub,
        resolve_image: ResolveImage,
        market: SpotMarket,
        clock: Clock,
    ) -> None:
        nobody = Machine(num_cpus=1, memory_bytes=1)
        super().__init__(settings, nobody, hub, resolve_image, market, clock, _why_no_disks, has_host_networks=False)
        self._kinds = kinds
        self._engine_name = engine_name

    @property
    def _has_hosts_here(self) -> bool:
        return False

    @property
    def decides_order(self) -> bool:
        """False, because the engine, not this service, decides which waiting job starts first."""
        return False

    @property
    def capacity(self) -> Capacity:
        """The capacity of all nodes together."""
        kinds = self._kinds()
        counted = counts(kinds)
        return Capacity(
            max_hosts=sum(count for _, count in counted),
            num_gpus=sum(kind.num_gpus * count for kind, count in counted),
            memory_per_host_bytes=max((kind.memory_bytes for kind in kinds), default=0),
            memory_bytes=sum(kind.memory_bytes * count for kind, count in counted),
        )

    def pending_reason(self, job: TrainingJob) -> str:
        """Return the engine's reason why a job waits; empty if it does not wait."""
        waiting = self._hub.waiting_jobs().get(job.name)
        return "" if waiting is None else waiting.pending_reason or self.why_held_back(job)

    def why_held_back(self, job: TrainingJob) -> str:
        """Return why a job is not started yet: a reason of `Admission`, or nodes have not reported their GPUs yet."""
        if (why := super().why_held_back(job)) or job.pool:
            return why  # a pool's hosts were requested already
        for group in JobRequest(job.request).instance_groups:
            shape = self._shape(group.instance_type)
            if why := why_unsure(shape, self._kinds(), num_hosts=group.instance_count):
                return f"waits for {self._engine_name}: {why}"
        return ""

    def kind_of(self, instance_type: str, mapping: HostMapping) -> str:
        """Return the name of the kind of node that serves an instance type in a job with this mapping."""
        num_hosts = sum(host.instance_type == instance_type for host in mapping.hosts)
        kind = choose_known(self._shape(instance_type), self._kinds(), num_hosts=num_hosts).kind
        return "" if kind is None else kind.name

    def mapping(self, job: JobRequest) -> HostMapping:
        """Return the job's hosts, each on a whole node.

        Raises: WireError(ResourceLimitExceeded) if the engine has fewer nodes.
        """
        hosts: list[HostShare] = []
        notes: list[str] = []
        warnings: list[str] = []
        for group in job.instance_groups:
            shape = self._shape(group.instance_type)
            chosen = choose_known(shape, self._kinds(), num_hosts=group.instance_count)
            if chosen.kind is None:
                raise WireError("ResourceLimitExceeded", f"{self._engine_name}: {chosen.reason}{self._advice()}")
            notes.append(chosen.reason)
            machine = Machine(
                num_cpus=chosen.kind.num_cpus,
                memory_bytes=chosen.kind.memory_bytes,
                num_gpus=chosen.kind.num_gpus,
            )
            one = InstanceGroup(name=group.name, instance_type=group.instance_type, num_hosts=1)
            mapped = map_hosts([one], {group.instance_type: shape}, machine=machine, settings=self._settings)
            notes += [note.replace("this machine", "its node") for note in mapped.notes]
            warnings += mapped.warnings
            if shape.link != Link():
                notes.append(
                    f"{shape.name}: rate_mbit_s, delay_ms and loss_percent have no effect on the links between nodes"
                )
            first = mapped.hosts[0]
            whole = replace(
                first.resources,
                num_cpus=float(machine.num_cpus),
                memory_bytes=int(machine.memory_bytes * (1 - NODE_RESERVE)),
                memory_advice="",
            )
            for _ in range(group.instance_count):
                index = len(hosts)
                hosts.append(replace(first, name=f"algo-{index + 1}", index=index, resources=whole))
        if job.host_share != WHOLE:
            notes.append(f"{HOST_SHARE} has no effect with engine {self._engine_name}: each host has all of a node")
        return HostMapping(
            hosts=tuple(hosts),
            num_gpus=sum(host.num_gpus for host in hosts),
            notes=tuple(dict.fromkeys(notes)),
            warnings=tuple(dict.fromkeys(warnings)),
        )

    def _shape(self, instance_type: str) -> InstanceShape:
        largest = max(self._kinds(), key=lambda kind: (kind.num_gpus, kind.num_cpus), default=None)
        machine = (
            Machine(num_cpus=1, memory_bytes=1 << 30)
            if largest is None
            else Machine(num_cpus=largest.num_cpus, memory_bytes=largest.memory_bytes, num_gpus=largest.num_gpus)
        )
        return lookup(instance_type, self._settings.instance_types, machine=machine)

    def _advice(self) -> str:
        if self._engine_name == "boxes":
            return "; add machines with: clary hosts add USER@HOST"
        return "; `clary capacity` lists the nodes"

    def _check_size(self, job: JobRequest, mapping: HostMapping) -> None:
        del job, mapping  # `mapping` has refused jobs that can never fit


def _why_no_disks(size_bytes: int) -> str:
    del size_bytes
    return "hosts are on other machines, on which this service makes no disks"
