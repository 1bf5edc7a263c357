"""Partition of a model into as many parts as pipeline ranks, with a reason.

Where: `decision` plans on rank 0 from the costs of a trace or of sizes, `tf_parallel.cutting` on every rank; partial
checkpoints store the resulting ranks.

Modules are ordered as the forward pass reaches them. Only modules with their own cost count: leaves, and modules with
parameters of their own. A part is a contiguous run of modules, so a microbatch passes from part to part once in each
direction. The plan first computes the least possible cost of the costliest part. Then, among all cuts whose parts cost
at most that plus a slack, it chooses the cuts highest in the tree of modules, because there the fewest bytes pass
between ranks. Modules that share parameters are placed together, with the first of them.

A module's cost is its share of all memory and of all time, weighted by `memory_weight`, as in SageMaker's
documentation.
Source: SageMaker developer guide, "model parallel core features: automated model splitting". The method is ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SLACK = 0.03  # the costliest part may exceed the optimum by this fraction, so that cuts can be made higher in the tree


@dataclass(frozen=True)
class ModuleCost:
    """The cost of one module alone, without its children.

    Args:
        name: its path from the root, with dots.
        seconds: duration of its forward pass, or any measure of work.
        memory_bytes: bytes of parameters and of tensors kept for the backward pass.
        shared: keys of parameters that other modules hold too.
    """

    name: str
    seconds: float
    memory_bytes: float
    shared: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Plan:
    """A decision.

    Args:
        part_of: pipeline rank of each module, by name.
        costs: each rank's share of the whole model's cost; the shares add up to 1.
        reason: one sentence.
    """

    part_of: Mapping[str, int]
    costs: tuple[float, ...]
    reason: str

    def __str__(self) -> str:
        lines = [f"  {name}: {part}" for name, part in self.part_of.items()]
        return "\n".join(["Partition assignments:", *lines, self.reason])


def plan_partition(modules: Sequence[ModuleCost], num_parts: int, *, memory_weight: float) -> Plan:
    """Cut a model.

    Args:
        memory_weight: 0 counts time alone, 1 memory alone.

    Raises: ValueError if there are no parts or no modules, or a name occurs twice.
    """
    if num_parts < 1 or not modules:
        raise ValueError(f"{len(modules)} modules in {num_parts} parts: expected 1 or more of both")
    if len({one.name for one in modules}) != len(modules):
        raise ValueError("two modules have one name: expected the path of each from the root")
    leads = _leads(modules)
    costs = _costs(modules, memory_weight)
    units = [place for place, lead in enumerate(leads) if place == lead]
    weights = [sum(cost for cost, lead in zip(costs, leads, strict=True) if lead == unit) for unit in units]
    names = [modules[unit].name for unit in units]
    least = _least_bottleneck(weights, num_parts)
    begins = _highest_cuts(weights, names, num_parts, least * (1 + SLACK))
    part_of_unit = {
        unit: part
        for part, (begin, end) in enumerate(zip(begins, [*begins[1:], len(units)], strict=True))
        for unit in units[begin:end]
    }
    part_of = {one.name: part_of_unit[lead] for one, lead in zip(modules, leads, strict=True)}
    shares = [0.0] * num_parts
    for unit, weight in zip(units, weights, strict=True):
        shares[part_of_unit[unit]] += weight
    cuts = ", ".join(names[begin] for begin in begins[1:] if begin < len(units)) or "nothing"
    if num_parts > len(units):
        cuts += f" ({num_parts - len(units)} parts stay empty: there are no more modules that can lie apart)"
    reason = (
        f"cut before {cuts}: parts have {', '.join(f'{share:.1%}' for share in shares)} of the model by "
        f"{memory_weight:g} x memory + {1 - memory_weight:g} x time; no cut has its costliest part below {least:.1%}"
    )
    return Plan(part_of, tuple(shares), reason)


def placed_by_hand(names: Sequence[str], placed: Mapping[str, int], default: int) -> dict[str, int]:
    """Return each module's part in manual partition: its own placement, or the innermost placed ancestor's.

    Args:
        names: paths with dots.
        placed: parts of the modules that the script placed; "" is the root.
    """
    found = {}
    for name in names:
        words = name.split(".") if name else []
        above = (".".join(words[:length]) for length in range(len(words), -1, -1))
        found[name] = next((placed[one] for one in above if one in placed), default)
    return found


def _leads(modules: Sequence[ModuleCost]) -> list[int]:
    """Return, for every module, the first module that shares parameters with it, directly or transitively."""
    lead = list(range(len(modules)))
    holder: dict[int, int] = {}

    def find(place: int) -> int:
        while lead[place] != place:
            place = lead[place]
        return place

    for place, one in enumerate(modules):
        for key in one.shared:
            first, second = sorted((find(holder.setdefault(key, place)), find(place)))
            lead[second] = first
    return [find(place) for place in range(len(modules))]


def _costs(modules: Sequence[ModuleCost], memory_weight: float) -> list[float]:
    """Return every module's cost share; if memory or time is not measured, the other measure alone counts."""
    memory, seconds = sum(one.memory_bytes for one in modules), sum(one.seconds for one in modules)
    if not memory and not seconds:
        return [1 / len(modules)] * len(modules)
    weight = memory_weight if memory and seconds else float(memory > 0)
    return [weight * one.memory_bytes / (memory or 1) + (1 - weight) * one.seconds / (seconds or 1) for one in modules]


def _least_bottleneck(weights: Sequence[float], num_parts: int) -> float:
    """Return the smallest possible weight of the heaviest run if weights are cut into at most `num_parts` runs."""
    total = _prefix_sums(weights)
    best = total[1:]  # best[i]: the result for the first i + 1 weights, initially as one run
    for _ in range(num_parts - 1):
        best = [
            min([best[end]] + [max(best[begin - 1], total[end + 1] - total[begin]) for begin in range(1, end + 1)])
            for end in range(len(weights))
        ]
    return best[-1]


def _highest_cuts(weights: Sequence[float], names: Sequence[str], num_parts: int, limit: float) -> list[int]:
    """Return each part's first unit; parts weigh at most `limit`, and cuts are as high in the tree as possible.

    All parts are used if there are enough units, since an idle rank saves no time.
    """
    total = _prefix_sums(weights)
    num_units, used = len(weights), min(num_parts, len(weights))
    depths = [0, *(_depth_of_cut(one, other) for one, other in itertools.pairwise(names))]
    tolerance = limit * 1e-9
    # best[part][end]: (sum of depths of cuts, first unit of the last part), for the first `end` units.
    best: list[dict[int, tuple[int, int]]] = [{0: (0, 0)}]
    for _ in range(used):
        found: dict[int, tuple[int, int]] = {}
        for end in range(1, num_units + 1):
            options = [
                (depth + depths[begin], begin)
                for begin, (depth, _) in best[-1].items()
                if begin < end and total[end] - total[begin] <= limit + tolerance
            ]
            if options:
                found[end] = min(options)
        best.append(found)
    begins, end = [], num_units
    for part in range(used, 0, -1):
        end = best[part][end][1]
        begins.append(end)
    return begins[::-1] + [num_units] * (num_parts - used)


def _depth_of_cut(one: str, other: str) -> int:
    """Return the depth of the cut between two neighbours: the number of modules below the root that hold both."""
    words = list(zip(one.split("."), other.split("."), strict=False))
    return next((depth for depth, (left, right) in enumerate(words) if left != right), len(words))


def _prefix_sums(weights: Sequence[float]) -> list[float]:
    sums = [0.0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    return sums
