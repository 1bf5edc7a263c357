"""Mapping of hosts to this machine, and the decision which waiting job may start.

Where: `map_hosts` runs when a job is created (notes for `describe`, refusal of jobs that never fit) and when its plan
is made; the reconcile loop calls `decide` for each waiting job, oldest first. Pure: no clock, no files, no processes.

CPUs are limited, not reserved: every host may use as many as its type has, and `Capacity.max_hosts` bounds the number
of hosts. Memory is reserved: a job starts when the limits of its hosts fit into the memory not reserved for other
hosts; setting `memory_overcommit` relaxes this. A GPU belongs to one job at a time, or to several jobs that each have a
fraction of a host (`host_shares`) and hold the matching fraction of the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clary.contract.launch_plan import Resources
from clary.control.scheduling import memory
from clary.control.scheduling.catalogue import LOCAL_GPU, InstanceShape
from clary.control.scheduling.host_shares import ROUNDING, WHOLE, note_of, share_shape
from clary.control.scheduling.machine import Machine
from clary.control.settings import SETTINGS_FILE, Settings

MIN_HOSTS = 4  # number of hosts that even a machine with one CPU runs at once
HOSTS_PER_CPU = 2
MAX_NAMES_IN_REASON = 5


@dataclass(frozen=True, kw_only=True)
class InstanceGroup:
    """A group of equal hosts of a request; a homogeneous cluster is one group."""

    name: str
    instance_type: str
    num_hosts: int


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Resources that the machine gives to all jobs together."""

    max_hosts: int
    num_gpus: int
    memory_per_host_bytes: int  # maximum memory of one host in bytes
    memory_bytes: int  # maximum sum of all hosts' memory limits in bytes


def capacity_of(machine: Machine, settings: Settings) -> Capacity:
    """Return the capacity that the settings leave of `machine`."""
    free = machine.memory_bytes - memory.reserve_bytes(machine.memory_bytes)
    return Capacity(
        max_hosts=settings.max_hosts or max(MIN_HOSTS, HOSTS_PER_CPU * machine.num_cpus),
        num_gpus=machine.num_gpus,
        memory_per_host_bytes=min(settings.memory_per_host_bytes or free, free),
        memory_bytes=int(free * settings.memory_overcommit),
    )


@dataclass(frozen=True, kw_only=True)
class HostShare:
    """Resources of one host of a job."""

    name: str  # algo-1
    index: int
    instance_group: str
    instance_type: str
    processes_per_host: int
    num_gpus: int  # number of GPUs of this machine; `Place` names them
    resources: Resources  # without GPU indices


@dataclass(frozen=True, kw_only=True)
class HostMapping:
    """Every host of a job on this machine, and sentences on differences from the real types."""

    hosts: tuple[HostShare, ...]
    num_gpus: int  # distinct GPUs of this machine that the job holds; fewer than the sum if hosts share
    share: float = WHOLE  # fraction of a host that each host counts as
    of_gpu: float = WHOLE  # fraction of each GPU that the job holds
    notes: tuple[str, ...]  # differences from the requested types
    warnings: tuple[str, ...] = ()  # assumptions about unknown types

    @property
    def memory_bytes(self) -> int:
        """Sum of the memory limits of the job's hosts, in bytes."""
        return sum(host.resources.memory_bytes or 0 for host in self.hosts)

    def resources(self, gpus: Sequence[Sequence[int]]) -> dict[str, Resources]:
        """Return each host's resources with the GPUs that `Place.gpus` gave it, by host name."""
        return {
            host.name: replace(host.resources, gpu_indices=tuple(indices))
            for host, indices in zip(self.hosts, gpus, strict=True)
        }


def map_hosts(
    groups: Sequence[InstanceGroup],
    shapes: Mapping[str, InstanceShape],
    *,
    machine: Machine,
    settings: Settings,
    share: float = WHOLE,
) -> HostMapping:
    """Divide `machine` among the hosts of one job.

    Processes per host are the number from the settings, else the type's GPUs (or NeuronCores, or one). If
    `clamp_processes` is set, the latter are limited to the GPUs that the host gets, or to the machine's CPUs if the
    type or the machine has no GPUs. `notes` name every difference from the real type; `warnings` name the assumptions
    about a type that is not in the catalogue, whose name may be misspelt.

    Args:
        groups: groups in the request's order, which decides the hosts' numbers.
        shapes: by instance type, from `catalogue.lookup`.
        machine: machine to divide.
        settings: settings of the service.
        share: fraction of each host that the job gets.
    """
    capacity = capacity_of(machine, settings)
    of_share = [note for shape in shapes.values() if (note := note_of(shape, share))]
    shared = {name: share_shape(shape, share) for name, shape in shapes.items()}
    shapes = {name: one.shape for name, one in shared.items()}
    gpus_by_group, num_gpus, notes = _divide_gpus(groups, shapes, machine)
    notes = [*of_share, *notes]
    given = _divide_memory(groups, shapes, capacity, share)
    hosts: list[HostShare] = []
    warnings: list[str] = []
    for group, gpus_per_host in zip(groups, gpus_by_group, strict=True):
        shape = shapes[group.instance_type]
        if shape.explanation:
            (notes if shape.is_known else warnings).append(shape.explanation)
        processes = _processes(shape, gpus_per_host, machine, settings, notes)
        resources = _cpus_and_link(shape, machine, notes)
        resources = replace(resources, num_cpus=resources.num_cpus * share)
        sizes = given[len(hosts) : len(hosts) + group.num_hosts]
        whole = [round(size / share) for size in sizes]
        advice = _memory_advice(shape, whole, groups, shapes, machine=machine, settings=settings, notes=notes)
        hosts.extend(
            HostShare(
                name=f"algo-{index + 1}",
                index=index,
                instance_group=group.name,
                instance_type=group.instance_type,
                processes_per_host=processes,
                num_gpus=gpus_per_host,
                resources=replace(resources, memory_bytes=size, memory_advice=advice),
            )
            for index, size in enumerate(sizes, start=len(hosts))
        )
    return HostMapping(
        hosts=tuple(hosts),
        num_gpus=num_gpus,
        share=share,
        of_gpu=_part_of_gpus(hosts, num_gpus, min(one.of_gpu for one in shared.values())),
        notes=tuple(dict.fromkeys(notes)),
        warnings=tuple(dict.fromkeys(warnings)),
    )


@dataclass(frozen=True, kw_only=True)
class Need:
    """Resources that a job needs in order to start."""

    job_name: str
    instance_type: str  # instance type of its first group; named in refusals
    gpus_per_host: tuple[int, ...]  # number of GPUs of each host
    num_gpus: int  # distinct GPUs; fewer than the sum if hosts share
    memory_bytes: int = 0  # memory limits of all its hosts together
    share: float = WHOLE  # fraction of a host that each host counts as
    of_gpu: float = WHOLE  # fraction of each GPU

    @classmethod
    def of(cls, job_name: str, mapping: HostMapping) -> Need:
        """Return the need of a job with this mapping, which has at least one host."""
        return cls(
            job_name=job_name,
            instance_type=mapping.hosts[0].instance_type,
            gpus_per_host=tuple(host.num_gpus for host in mapping.hosts),
            num_gpus=mapping.num_gpus,
            memory_bytes=mapping.memory_bytes,
            share=mapping.share,
            of_gpu=mapping.of_gpu,
        )

    @property
    def num_hosts(self) -> int:
        """Number of the job's hosts."""
        return len(self.gpus_per_host)

    @property
    def hosts_used(self) -> float:
        """Number of hosts that the job takes up of `Capacity.max_hosts`; fractions of hosts count as fractions."""
        return round(self.num_hosts * self.share, 6)


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Resources that a running job holds."""

    job_name: str
    num_hosts: int
    gpu_indices: tuple[int, ...] = ()
    memory_bytes: int = 0  # sum of its hosts' limits
    share: float = WHOLE  # fraction of a host that each host counts as
    of_gpu: float = WHOLE  # fraction of each of its GPUs

    @property
    def hosts_used(self) -> float:
        """Number of hosts that the job takes up of `Capacity.max_hosts`; fractions of hosts count as fractions."""
        return round(self.num_hosts * self.share, 6)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The job may start."""

    gpus: tuple[tuple[int, ...], ...]  # GPU indices of each host, in host order


@dataclass(frozen=True, kw_only=True)
class Wait:
    """The job has to wait; `reason` is a sentence for `describe`."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Refuse:
    """The job can never run on this machine; `reason` is the message of ResourceLimitExceeded."""

    reason: str


Decision = Place | Wait | Refuse


def decide(need: Need, running: Sequence[Holding], *, capacity: Capacity, queue_ahead: Sequence[Need] = ()) -> Decision:
    """Decide whether a job may start now; a job never overtakes an older waiting job.

    Args:
        need: need of the job.
        running: resources of jobs with hosts, stopping jobs included.
        capacity: capacity for all jobs together.
        queue_ahead: older waiting jobs, oldest first.
    """
    refusal = refuse_if_too_large(need, running, capacity=capacity)
    if refusal is not None:
        return refusal
    if queue_ahead:
        return Wait(reason=behind([older.job_name for older in queue_ahead]))
    free_hosts = round(capacity.max_hosts - sum(holding.hosts_used for holding in running), 6)
    if need.hosts_used > free_hosts + ROUNDING:
        held = [(holding.job_name, holding.hosts_used) for holding in running if holding.num_hosts]
        return Wait(reason=_waiting("host", need.hosts_used, max(free_hosts, 0), capacity.max_hosts, held))
    free_gpus = _free_gpus(need, running, capacity.num_gpus)
    if need.num_gpus > len(free_gpus):
        held = [(holding.job_name, len(holding.gpu_indices)) for holding in running if holding.gpu_indices]
        return Wait(reason=_waiting("GPU", need.num_gpus, len(free_gpus), capacity.num_gpus, held))
    free_bytes = capacity.memory_bytes - sum(holding.memory_bytes for holding in running)
    # After a change of settings the need may exceed the capacity; without running jobs the job starts anyway.
    if need.memory_bytes > free_bytes and any(holding.memory_bytes for holding in running):
        return Wait(reason=_waiting_for_memory(need, max(free_bytes, 0), running, capacity))
    return Place(gpus=_assign_gpus(need, free_gpus[: need.num_gpus]))


def _free_gpus(need: Need, running: Sequence[Holding], num_gpus: int) -> list[int]:
    """Return the GPUs that have the needed fraction of a GPU free, most used first."""
    used = [0.0] * num_gpus
    for holding in running:
        for index in holding.gpu_indices:
            if index < num_gpus:
                used[index] += holding.of_gpu
    free = [index for index in range(num_gpus) if used[index] + need.of_gpu <= WHOLE + ROUNDING]
    return sorted(free, key=lambda index: -round(used[index], 6))


def behind(names_ahead: Sequence[str]) -> str:
    """Return why a job behind others in the queue waits; the names of the others come oldest first."""
    jobs = "1 older job waits" if len(names_ahead) == 1 else f"{len(names_ahead)} older jobs wait"
    return f"First come, first served: {jobs} for hosts ({_some_names(names_ahead)})."


def refuse_if_too_large(need: Need, running: Sequence[Holding] = (), *, capacity: Capacity) -> Refuse | None:
    """Return a refusal if `need` exceeds the whole machine, else None.

    Args:
        need: need of the job.
        running: jobs with hosts; only for the number in the message.
        capacity: capacity for all jobs together.
    Source: message of ResourceLimitExceeded as clients know it; the last sentence is Clary's.
    """
    used = round(sum(holding.hosts_used for holding in running), 6)
    limit = (
        f"The account-level service limit '{need.instance_type} for training job usage' is {capacity.max_hosts} "
        f"Instances, with current utilization of {used:g} Instances and a request delta of {need.hosts_used:g} "
        "Instances. Please contact AWS support to request an increase for this limit."
    )
    if need.hosts_used > capacity.max_hosts + ROUNDING:
        return Refuse(reason=f"{limit} Here the limit is this machine's: setting max_hosts raises it.")
    if need.num_gpus > capacity.num_gpus:
        return Refuse(
            reason=f"{limit} Here the limit is this machine's: the job needs {need.num_gpus} GPUs "
            f"and the machine has {capacity.num_gpus}."
        )
    return None


def _divide_gpus(
    groups: Sequence[InstanceGroup], shapes: Mapping[str, InstanceShape], machine: Machine
) -> tuple[list[int], int, list[str]]:
    """Return GPUs per host for each group, the number of the job's distinct GPUs, and notes.

    If the machine has enough GPUs, every host gets its type's number. Otherwise the hosts whose types have GPUs get
    equal numbers of them; if such hosts outnumber the GPUs, hosts share GPUs.
    """
    wanted = [shapes[group.instance_type].num_gpus for group in groups]
    total = sum(gpus * group.num_hosts for gpus, group in zip(wanted, groups, strict=True))
    if total == 0 or machine.num_gpus == 0:
        return [0] * len(groups), 0, []
    if total <= machine.num_gpus:
        return wanted, total, []
    num_takers = sum(group.num_hosts for gpus, group in zip(wanted, groups, strict=True) if gpus)
    share = machine.num_gpus // num_takers
    if share == 0:
        note = f"{num_takers} hosts want GPUs and this machine has {machine}: hosts share them, one each"
        return [min(gpus, 1) for gpus in wanted], machine.num_gpus, [note]
    given = [min(gpus, share) for gpus in wanted]
    note = f"the job's hosts want {total} GPUs and this machine has {machine}: at most {share} per host"
    return given, sum(gpus * group.num_hosts for gpus, group in zip(given, groups, strict=True)), [note]


def _processes(shape: InstanceShape, gpus_per_host: int, machine: Machine, settings: Settings, notes: list[str]) -> int:
    wanted = shape.processes_per_host
    limit = max(gpus_per_host if shape.num_gpus and machine.num_gpus else machine.num_cpus, 1)
    if wanted <= limit or shape.processes is not None:
        return wanted  # a number of processes from the settings is not limited
    units = _units(shape)
    if not settings.clamp_processes:
        notes.append(
            f"{shape.name} has {units}; this machine has {machine}: "
            f"{wanted} processes per host all the same (setting clamp_processes is off)"
        )
        return wanted
    notes.append(
        f"{shape.name} has {units}; this machine has {machine}: "
        f"{_count(limit, 'process', 'processes')} per host instead of {wanted} (setting clamp_processes)"
    )
    return limit


def _units(shape: InstanceShape) -> str:
    if shape.num_gpus:
        return _count(shape.num_gpus, "GPU", "GPUs")
    return _count(shape.num_accelerators, "NeuronCore", "NeuronCores")


def _part_of_gpus(hosts: Sequence[HostShare], num_gpus: int, of_host: float) -> float:
    """Return the fraction that a job holds of each of its GPUs: the sum of the parts of hosts that share the GPU."""
    if num_gpus == 0:
        return WHOLE
    return min(WHOLE, of_host * max(1.0, sum(host.num_gpus for host in hosts) / num_gpus))


def _divide_memory(
    groups: Sequence[InstanceGroup], shapes: Mapping[str, InstanceShape], capacity: Capacity, share: float = WHOLE
) -> list[int]:
    """Return the bytes of memory that each host may use, in the order of hosts."""
    wanted = [
        int(min(shapes[group.instance_type].memory_bytes, capacity.memory_per_host_bytes) * share)
        for group in groups
        for _ in range(group.num_hosts)
    ]
    return memory.fair_shares(wanted, capacity.memory_bytes)


def _memory_advice(
    shape: InstanceShape,
    sizes: Sequence[int],
    groups: Sequence[InstanceGroup],
    shapes: Mapping[str, InstanceShape],
    *,
    machine: Machine,
    settings: Settings,
    notes: list[str],
) -> str:
    """Note how the memory of a group's hosts differs from their type's; return advice in case of too little memory."""
    promised = shape.memory_bytes
    given = min(sizes, default=promised)
    capacity = capacity_of(machine, settings)
    unset = capacity_of(machine, replace(settings, memory_per_host_bytes=0))
    of_machine = unset.memory_per_host_bytes
    # Largest memory that any type could give: the hosts' shares if their type had all the machine's memory.
    largest = {**shapes, shape.name: replace(shape, memory_bytes=of_machine)}
    types = [group.instance_type for group in groups for _ in range(group.num_hosts)]
    most, without_setting = (
        min(
            (
                size
                for size, name in zip(_divide_memory(groups, largest, each), types, strict=True)
                if name == shape.name
            ),
            default=of_machine,
        )
        for each in (capacity, unset)
    )
    limit = memory.limit_of(most, of_machine=of_machine, without_setting=without_setting)
    note = memory.note_of(
        limit if given < promised else memory.Bound.TYPE,
        instance_type=shape.name,
        promised=promised,
        given=given,
        of_machine=capacity.memory_bytes,
        num_hosts=len(types),
    )
    notes.extend([note] if note else [])
    return memory.advice_of(
        memory.Bound.TYPE if given == promised <= most - memory.MIB else limit,
        instance_type=shape.name,
        promised=promised,
        most=most,
        without_setting=without_setting,
    )


def _cpus_and_link(shape: InstanceShape, machine: Machine, notes: list[str]) -> Resources:
    num_cpus = min(shape.num_cpus, machine.num_cpus)
    if num_cpus < shape.num_cpus:
        notes.append(f"{shape.name} has {shape.num_cpus} CPUs; its hosts share this machine's {machine.num_cpus}")
    if shape.name == LOCAL_GPU and machine.num_gpus == 0:
        notes.append("local_gpu was asked for and this machine has no GPU: the job runs on CPUs")
    return Resources(num_cpus=float(num_cpus), memory_bytes=None, link=shape.link)


def _assign_gpus(need: Need, free_gpus: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Assign GPUs to hosts in turn; after the last GPU, start again at the first, so that hosts share GPUs."""
    assigned: list[tuple[int, ...]] = []
    position = 0
    for num_gpus in need.gpus_per_host:
        assigned.append(tuple(free_gpus[(position + offset) % len(free_gpus)] for offset in range(num_gpus)))
        position += num_gpus
    return tuple(assigned)


def _waiting(unit: str, num_needed: float, num_free: float, num_all: int, held: Sequence[tuple[str, float]]) -> str:
    shown = [f"{name} holds {count:g}" for name, count in held[:MAX_NAMES_IN_REASON]]
    if len(held) > MAX_NAMES_IN_REASON:
        rest = held[MAX_NAMES_IN_REASON:]
        shown.append(f"{len(rest)} more jobs hold {sum(count for _, count in rest):g}")
    free = f"{num_free:g} of {_count(num_all, unit, unit + 's')} {'is' if num_free == 1 else 'are'} free"
    return f"Needs {_count(num_needed, unit, unit + 's')}; {free}: {', '.join(shown)}."


def _waiting_for_memory(need: Need, free_bytes: int, running: Sequence[Holding], capacity: Capacity) -> str:
    held = [(holding.job_name, holding.memory_bytes) for holding in running if holding.memory_bytes]
    shown = [f"{name} holds {memory.gib(size)}" for name, size in held[:MAX_NAMES_IN_REASON]]
    if rest := held[MAX_NAMES_IN_REASON:]:
        shown.append(f"{len(rest)} more jobs hold {memory.gib(sum(size for _, size in rest))}")
    hosts = _count(need.num_hosts, "host", "hosts")
    return (
        f"Needs {memory.gib(need.memory_bytes)} of memory for {hosts} of {need.instance_type}; "
        f"{memory.gib(free_bytes)} of {memory.gib(capacity.memory_bytes)} are free: {', '.join(shown)}. "
        f'To run more at once, {SETTINGS_FILE} can promise less to a host (memory_gib in [instance_types."'
        f'{need.instance_type}"], or memory_per_host_bytes) or more than there is (memory_overcommit).'
    )


def _some_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES_IN_REASON])
    rest = len(names) - MAX_NAMES_IN_REASON
    return f"{shown} and {rest} more" if rest > 0 else shown


def _count(number: float, one: str, many: str) -> str:
    return f"{number:g} {one if number == 1 else many}"
