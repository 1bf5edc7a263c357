"""Sorts nodes into kinds, and finds the options of sbatch that reach each kind. Pure.

Where: `scheduler.capacity` shows the kinds, `submission` requests nodes of a kind. Settings come first: each table
`[slurm."ml.x"]` sorts the nodes that it selects into kinds for this instance type; instance types with equal tables
share their kinds. All other instance types use the nodes that the table "*" selects or, without this table, the nodes
of the default partition, as sbatch itself does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clary.control.engines.cluster.scheduler import NodeKind
from clary.control.engines.slurm.node_rows import Gres, NodeRow, Nodes, num_gpus, read_gres

FOR_ALL = "*"  # key of the settings' table for types without their own table
_FEATURE = r"[A-Za-z0-9_.:=@/+-]+"
_ALL_OF = re.compile(rf"{_FEATURE}(?:&{_FEATURE})*")
_ANY_OF = re.compile(rf"{_FEATURE}(?:\|{_FEATURE})*")
_MARK_LETTERS = 4  # letters of the digest that makes names unique
_MIB_PER_GIB = 1024

Options = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SlurmKind:
    """A kind of nodes with the options of sbatch that get such a node."""

    shown: NodeKind
    partition: str  # several are separated by commas
    options: Options  # from settings
    features: tuple[str, ...]
    gres: tuple[Gres, ...]

    @property
    def name(self) -> str:
        """Name of the kind, as orders contain it."""
        return self.shown.name

    @property
    def constraint(self) -> str:
        """Constraint that excludes other nodes of the partition: from settings, else all features of the nodes."""
        if given := self.options.get("constraint", ""):
            return given
        return "&".join(feature for feature in self.features if re.fullmatch(_FEATURE, feature))

    @property
    def gres_option(self) -> str:
        """Resources to request: from settings, else all GPUs of the node."""
        if given := self.options.get("gres", ""):
            return given
        return ",".join(_gres_words(one) for one in self.gres if one.name == "gpu" and one.count)


def kinds_of(nodes: Nodes, tables: Mapping[str, Options]) -> tuple[SlurmKind, ...]:
    """Return the kinds, the smallest first.

    Args:
        nodes: nodes of the cluster.
        tables: instance type or "*" -> its options.
    """
    for_all = dict(tables.get(FOR_ALL, {}))
    types: dict[frozenset[tuple[str, str]], list[str]] = {}
    for instance_type, table in tables.items():
        if instance_type != FOR_ALL:
            types.setdefault(frozenset({**for_all, **table}.items()), []).append(instance_type)
    found: dict[str, SlurmKind] = {}
    taken: set[tuple[object, ...]] = set()
    for options, served in [*types.items(), (frozenset(for_all.items()), [])]:
        for kind in _kinds_of_one(nodes, dict(options), tuple(sorted(served))):
            place = (kind.partition, kind.features, kind.gres, kind.shown.num_cpus, kind.shown.memory_bytes)
            if served:
                taken.add(place)
            elif place in taken:
                continue
            found.setdefault(kind.name, kind)
    return tuple(
        sorted(
            found.values(),
            key=lambda one: (one.shown.num_gpus, one.shown.num_cpus, one.shown.memory_bytes, one.name),
        )
    )


def why_without_nodes(nodes: Nodes, tables: Mapping[str, Options]) -> tuple[str, ...]:
    """Return a sentence for each table that selects no node, also through its partition for spot jobs.

    Args:
        nodes: nodes of the cluster.
        tables: instance type or "*" -> its options.
    """
    for_all = tables.get(FOR_ALL, {})
    found = []
    for name, table in tables.items():
        options, label = {**for_all, **table}, f'[slurm."{name}"]'
        if not any(_kinds_of_one(nodes, options, ())):
            found.append(f"{label} selects no node: {_why_no_node(nodes, options)}")
        spot = options.get("spot_partition", "")
        if spot and not _known(partitions_of(spot, nodes), nodes):
            found.append(f"{label}: no spot_partition {spot} has nodes; there are {_listed(nodes)}")
    return tuple(found)


def _why_no_node(nodes: Nodes, options: Options) -> str:
    partitions = partitions_of(options.get("partition", ""), nodes)
    where = f"partition {','.join(partitions)}"
    if not _known(partitions, nodes):
        return f"no {where} has nodes; there are {_listed(nodes)}"
    for key in ("constraint", "gres"):
        if key in options and not any(_kinds_of_one(nodes, {"partition": ",".join(partitions), key: options[key]}, ())):
            return f"none of {where} has its {key} {options[key]}"
    return f"none of {where} has all that it asks for"


def _known(partitions: tuple[str, ...], nodes: Nodes) -> bool:
    return any(name in nodes.limits_s for name in partitions)


def _listed(nodes: Nodes) -> str:
    return ", ".join(sorted(nodes.limits_s)) or "no partitions"


def partitions_of(text: str, nodes: Nodes) -> tuple[str, ...]:
    """Return the partitions that an option names; if it is empty, the default partition, or else all."""
    if text:
        return tuple(text.split(","))
    return (nodes.default_partition,) if nodes.default_partition else tuple(nodes.limits_s)


def _kinds_of_one(nodes: Nodes, options: Options, served: tuple[str, ...]) -> Iterable[SlurmKind]:
    """Yield the kinds of nodes that one table of options selects."""
    partitions = partitions_of(options.get("partition", ""), nodes)
    wanted = read_gres(options.get("gres", ""))
    groups: dict[tuple[object, ...], list[NodeRow]] = {}
    for node in nodes.by_name.values():
        is_reached = set(partitions) & set(node.partitions) and _has_gres(node, wanted)
        if is_reached and _meets(options.get("constraint", ""), node.features):
            key = (node.num_cpus, node.memory_mib, node.gres, node.features)
            groups.setdefault(key, []).append(node)
    for members in groups.values():
        yield _kind(members, ",".join(partitions), options, served)


def _kind(members: list[NodeRow], partition: str, options: Options, served: tuple[str, ...]) -> SlurmKind:
    node = members[0]
    gpus = num_gpus(read_gres(options["gres"])) if "gres" in options else num_gpus(node.gres)
    text = repr((partition, node.num_cpus, node.memory_mib, node.gres, node.features, sorted(options.items())))
    mark = hashlib.sha256(text.encode()).hexdigest()[:_MARK_LETTERS]
    shape = f"{node.num_cpus}cpu" + (f"-{gpus}gpu" if gpus else "")
    shown = NodeKind(
        name=f"{partition.replace(',', '+')}-{shape}-{mark}",
        num_cpus=node.num_cpus,
        memory_bytes=node.memory_mib << 20,
        num_gpus=gpus,
        num_nodes=len(members),
        num_free=sum(one.is_free for one in members),
        maps_to=_words(node, partition, options),
        instance_types=served,
        nodes=tuple(sorted(one.name for one in members)),
        out_of_use=", ".join(f"{one.name} is {one.words}" for one in members if one.is_silent or one.is_leaving),
    )
    return SlurmKind(shown=shown, partition=partition, options=options, features=node.features, gres=node.gres)


def _words(node: NodeRow, partition: str, options: Options) -> str:
    parts = [f"partition {partition}", f"{node.num_cpus} CPUs", f"{node.memory_mib // _MIB_PER_GIB} GiB"]
    if "gres" not in options and node.gres:
        parts.append("gres " + ",".join(map(_gres_words, node.gres)))
    if "constraint" not in options and node.features:
        parts.append(f"features {','.join(node.features)}")
    parts += [f"{name} {value}" for name, value in sorted(options.items()) if name != "partition"]
    return ", ".join(parts)


def _gres_words(one: Gres) -> str:
    return ":".join(part for part in (one.name, one.kind, str(one.count)) if part)


def _has_gres(node: NodeRow, wanted: tuple[Gres, ...]) -> bool:
    return all(
        sum(have.count for have in node.gres if have.name == want.name and want.kind in ("", have.kind)) >= want.count
        for want in wanted
    )


def _meets(constraint: str, features: tuple[str, ...]) -> bool:
    """Whether a node has the features of a constraint. Forms that count nodes are left to Slurm and count as met."""
    if _ALL_OF.fullmatch(constraint):
        return set(constraint.split("&")) <= set(features)
    if _ANY_OF.fullmatch(constraint):
        return bool(set(constraint.split("|")) & set(features))
    return True
