"""Makes the arguments of sbatch and the components of a job out of an order. Pure.

Where: `scheduler.ask` runs sbatch with them. A component contains hosts on nodes of one kind; several components are
one heterogeneous job, which Slurm grants as a whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clary.base.errors import EngineError, Fault
from clary.control.engines.cluster.scheduler import AllocationOrder, HostWish
from clary.control.engines.slurm.kinds import FOR_ALL, Options, SlurmKind, partitions_of
from clary.control.engines.slurm.node_rows import Nodes
from clary.control.engines.slurm.queue_rows import SIGNAL_EARLY_S, comment_of

MAX_SIGNAL_S = 65_535  # largest value of --signal
_MINUTE_S = 60
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_PASSED_ON = ("account", "qos", "reservation")


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One call of sbatch."""

    arguments: tuple[str, ...]
    components: tuple[tuple[int, ...], ...]  # indices of hosts
    remark: str = ""  # sentence on a difference from the order; empty without one


@dataclass(frozen=True, kw_only=True)
class _Component:
    """Hosts on nodes of one kind."""

    kind: SlurmKind | None  # None lets Slurm choose
    wishes: tuple[HostWish, ...]


def submission_of(
    order: AllocationOrder,
    wanted: Sequence[HostWish],
    *,
    mark: str,
    kinds: Sequence[SlurmKind],
    nodes: Nodes,
    tables: Mapping[str, Options],
) -> Submission:
    """Return the call of sbatch that requests these hosts as one job.

    Args:
        order: the request for the whole pool.
        wanted: the hosts of the pool to request now.
        mark: mark of the service's jobs.
        kinds: kinds of nodes.
        nodes: nodes of the cluster.
        tables: tables of the settings; "*" applies to hosts whose kind Slurm chooses.
    Raises: EngineError if a kind no longer exists.
    """
    arguments: list[str] = ["--parsable"]
    remarks: list[str] = []
    components = _components(wanted, kinds)
    for number, component in enumerate(components):
        limit_min, remark = _limit(order, component, nodes, tables)
        arguments += [":"] if number else []
        arguments += _arguments(order, component, mark=mark, limit_min=limit_min, for_all=tables.get(FOR_ALL, {}))
        remarks += [remark] if remark and remark not in remarks else []
    indices = tuple(tuple(wish.index for wish in component.wishes) for component in components)
    return Submission(arguments=tuple(arguments), components=indices, remark="; ".join(remarks))


def _components(wanted: Sequence[HostWish], kinds: Sequence[SlurmKind]) -> list[_Component]:
    by_name = {kind.name: kind for kind in kinds}
    groups: dict[tuple[object, ...], list[HostWish]] = {}
    for wish in sorted(wanted, key=lambda one: one.index):
        if wish.kind and wish.kind not in by_name:
            raise EngineError(
                f"algo-{wish.index + 1} was to have a node of kind {wish.kind}, which Slurm does not have any more; "
                f"there are {', '.join(by_name) or 'no nodes'}. Create the job again.",
                fault=Fault.CAPACITY,
            )
        shape = () if wish.kind else (wish.num_cpus, wish.memory_bytes, wish.num_gpus)
        groups.setdefault((wish.kind, wish.num_gpus > 0, *shape), []).append(wish)
    return [_Component(kind=by_name.get(group[0].kind), wishes=tuple(group)) for group in groups.values()]


def _limit(
    order: AllocationOrder, component: _Component, nodes: Nodes, tables: Mapping[str, Options]
) -> tuple[int, str]:
    """Return the limit in minutes, and a remark if the partition allows less than the order wants.

    The limit is the order's limit plus the grace and SIGNAL_EARLY_S, so that Slurm's signal, which may come early,
    comes after the order's limit.
    """
    wanted_min = max(1, math.ceil((order.limit_s + order.grace_s + SIGNAL_EARLY_S) / _MINUTE_S))
    partition = _partition(order, component, tables.get(FOR_ALL, {}))
    allowed = [nodes.limits_s[name] for name in partitions_of(partition, nodes) if name in nodes.limits_s]
    bounded = [limit for limit in allowed if limit is not None]
    if not bounded or len(bounded) < len(allowed) or wanted_min * _MINUTE_S <= max(bounded):
        return wanted_min, ""
    most_min = max(1, int(max(bounded) // _MINUTE_S))
    where = f"partition {partition or nodes.default_partition}"
    return most_min, f"{where} allows {most_min} of the {wanted_min} minutes that the job may need"


def _arguments(
    order: AllocationOrder, component: _Component, *, mark: str, limit_min: int, for_all: Options
) -> list[str]:
    kind, wishes = component.kind, component.wishes
    options = kind.options if kind is not None else for_all
    grace_s = min(MAX_SIGNAL_S, math.ceil(order.grace_s))
    indices = tuple(wish.index for wish in wishes)
    found = [
        f"--job-name={order.job_name if _PLAIN_NAME.fullmatch(order.job_name) else order.tag}",
        f"--comment={comment_of(mark, order.tag, indices, grace_s)}",
        f"--nodes={len(wishes)}",
        "--ntasks-per-node=1",
        "--exclusive",
        "--mem=0",
        f"--time={limit_min}",
        f"--signal=TERM@{grace_s}",
        "--no-requeue",
        "--no-kill",
        "--chdir=/",
        "--output=/dev/null",  # a folder missing on the node would fail the job: the script itself chooses one
        # sbatch has only a few variables (see `programs`); with the value NONE, nodes would run a login shell
        "--export=ALL",
        "--propagate=NONE",  # the node's own limits apply
    ]
    if partition := _partition(order, component, for_all):
        found.append(f"--partition={partition}")
    found += [f"--{name}={options[name]}" for name in _PASSED_ON if options.get(name)]
    has_gpus = wishes[0].num_gpus > 0
    if kind is not None:
        found.append(f"--mincpus={kind.shown.num_cpus}")
        found += [f"--constraint={kind.constraint}"] if kind.constraint else []
        found += [f"--gres={kind.gres_option}"] if kind.gres_option and (has_gpus or "gres" in options) else []
        return found
    found.append(f"--mincpus={max(1, wishes[0].num_cpus)}")
    found += [f"--constraint={options['constraint']}"] if options.get("constraint") else []
    gres = options.get("gres", "") or (f"gpu:{wishes[0].num_gpus}" if has_gpus else "")
    return found + ([f"--gres={gres}"] if gres else [])


def _partition(order: AllocationOrder, component: _Component, for_all: Options) -> str:
    """Return the partitions for sbatch's option; empty lets Slurm choose."""
    options = component.kind.options if component.kind is not None else for_all
    if order.is_spot and options.get("spot_partition"):
        return options["spot_partition"]
    return component.kind.partition if component.kind is not None else options.get("partition", "")
