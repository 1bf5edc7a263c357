"""Chooses the kind of node that serves as an instance type, and counts the nodes of kinds. Pure.

Where: `reconcile.node_admission` calls it when a job is created and when its hosts are requested. Sums over kinds use
`counts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clary.control.engines.cluster.scheduler import NodeKind
from clary.control.scheduling.catalogue import InstanceShape


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A kind, and a text on how it differs from the type; the kind is None if there are too few nodes."""

    kind: NodeKind | None
    reason: str


def counts(kinds: Sequence[NodeKind]) -> list[tuple[NodeKind, int]]:
    """Return each kind with the number of its nodes that no earlier kind has; together they count each node once."""
    found, seen = [], set[str]()
    for kind in kinds:
        found.append((kind, len(set(kind.nodes) - seen) if kind.nodes else kind.num_nodes))
        seen.update(kind.nodes)
    return found


def choose_kind(shape: InstanceShape, kinds: Sequence[NodeKind], *, num_hosts: int) -> Chosen:
    """Return the kind for hosts of one type.

    The kind that settings name has precedence. Kinds that settings give to other types are used only if there are no
    others. Otherwise it is the smallest kind that has the type's GPUs, CPUs and memory; kinds without GPUs count as
    smaller than kinds with GPUs. If no kind has them, it is the largest kind, for a type without GPUs the largest
    without GPUs if there is one; the reason then names the difference. If no kind has enough nodes, several kinds serve
    together, and each host gets the least CPUs, memory and GPUs of these kinds.

    Args:
        shape: resources of the instance type.
        kinds: kinds of all nodes.
        num_hosts: number of hosts of this type that the job requests.
    """
    # Settings may give nodes of other types another account or a reservation.
    usable = [kind for kind in kinds if not kind.instance_types or shape.name in kind.instance_types] or list(kinds)
    enough = [kind for kind in usable if kind.num_nodes >= num_hosts]
    if not enough:
        return _of_several(shape, usable, num_hosts)
    named = [kind for kind in enough if shape.name in kind.instance_types]
    if named:
        return Chosen(kind=named[0], reason=f"{shape.name} is served by {named[0].maps_to}, as settings say")
    fitting = [kind for kind in enough if has_all(kind, shape)]
    if fitting:
        kind = min(fitting, key=lambda one: (one.num_gpus, one.num_cpus, one.memory_bytes, one.name))
        return Chosen(kind=kind, reason=f"{shape.name} is served by {kind.maps_to}")
    able = [kind for kind in enough if bool(kind.num_gpus) == bool(shape.num_gpus)] or enough
    kind = max(able, key=lambda one: (one.num_gpus, one.num_cpus, one.memory_bytes, one.name))
    has = f"{kind.num_cpus} CPUs, {kind.memory_bytes >> 30} GiB and {kind.num_gpus} GPUs"
    wants = f"{shape.num_cpus} CPUs, {shape.memory_bytes >> 30} GiB and {shape.num_gpus} GPUs"
    return Chosen(kind=kind, reason=f"{shape.name} has {wants}; it is served by {kind.maps_to}, with {has}")


def _of_several(shape: InstanceShape, kinds: Sequence[NodeKind], num_hosts: int) -> Chosen:
    """Return a kind without a name that has the least resources of several kinds; the scheduler chooses a kind."""
    able = [kind for kind in kinds if kind.num_gpus >= shape.num_gpus] or list(kinds)
    total = sum(count for _, count in counts(able))
    if total < num_hosts:
        return Chosen(kind=None, reason=f"{num_hosts} nodes are needed for {shape.name}; there are {total}")
    kind = NodeKind(
        name="",
        num_cpus=min(one.num_cpus for one in able),
        memory_bytes=min(one.memory_bytes for one in able),
        num_gpus=min(one.num_gpus for one in able),
        num_nodes=total,
        num_free=sum(one.num_free for one in able),
        maps_to=f"nodes of {len(able)} kinds",
    )
    has = f"{kind.num_cpus} CPUs, {kind.memory_bytes >> 30} GiB and {kind.num_gpus} GPUs at least"
    return Chosen(kind=kind, reason=f"{shape.name} is served by {kind.maps_to}, with {has}")


def choose_known(shape: InstanceShape, kinds: Sequence[NodeKind], *, num_hosts: int) -> Chosen:
    """Return `choose_kind` among kinds whose GPUs are known; among all kinds, if the known ones lack such GPUs.

    Args: as `choose_kind`.
    """
    known = [kind for kind in kinds if not kind.why_unsure]
    chosen = choose_kind(shape, known, num_hosts=num_hosts)
    if len(known) == len(kinds) or (chosen.kind is not None and has_all(chosen.kind, shape)):
        return chosen
    return choose_kind(shape, kinds, num_hosts=num_hosts)


def why_unsure(shape: InstanceShape, kinds: Sequence[NodeKind], *, num_hosts: int) -> str:
    """Return why it is not known yet which kind will serve a type; empty if it is known.

    Args: as `choose_kind`.
    """
    known = [kind for kind in kinds if not kind.why_unsure]
    chosen = choose_kind(shape, known, num_hosts=num_hosts)
    if chosen.kind is not None and has_all(chosen.kind, shape):
        return ""
    return ", ".join(kind.why_unsure for kind in kinds if kind.why_unsure)


def has_all(kind: NodeKind, shape: InstanceShape) -> bool:
    """Return whether a kind has the GPUs, CPUs and memory of a type."""
    # A node of 64 GiB reports a little less memory to its system.
    return (
        kind.num_gpus >= shape.num_gpus
        and kind.num_cpus >= shape.num_cpus
        and kind.memory_bytes >= 0.9 * shape.memory_bytes
    )
