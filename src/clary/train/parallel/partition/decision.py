"""Decision of the pipeline rank of every module, once and equal on all ranks.

Where: `DistributedModel` calls it in its first step, on all ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from clary.train.parallel.errors import ParallelError
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.marks import marks_of
from clary.train.parallel.misuse import check_parts
from clary.train.parallel.partition.plan import Plan, placed_by_hand, plan_partition
from clary.train.parallel.partition.trace import costs_by_size, indivisible_modules, trace_costs
from clary.train.parallel.runtime import Runtime

_LOG = logging.getLogger("clary.smp")


def decide(
    module: torch.nn.Module, runtime: Runtime, run: Callable[[], Any], *, measures_times: bool
) -> dict[str, int]:
    """Return the part of every module that has state, the same on all ranks; rank 0 prints it.

    Args:
        run: calls the model once for a trace, on the first ranks of pipelines alone.

    Raises: ValueError for a pipeline rank without a module, a mark beyond the last rank, or a parameter shared by
        modules that are marked for different ranks; ParallelError on other ranks if rank 0 failed.
    """
    configuration = runtime.configuration
    if not configuration.auto_partition:
        parts = _by_hand(module, configuration.partitions, configuration.default_partition)
        check_parts(parts.values(), configuration.partitions)
        if runtime.rank == 0:
            print(_words(parts, "auto_partition is off: as the script placed them"), flush=True)
        return parts
    if runtime.rank == 0 and (marks := marks_of(module)):
        _LOG.warning(
            "smp.partition and smp.set_partition have no effect on %s and %d more modules: auto_partition is on; set "
            "it to false, with a default_partition",
            next(iter(marks)) or "the model",
            len(marks) - 1,
        )
    # A model with parameters on the meta device cannot be run.
    is_sized = configuration.skip_tracing or any(parameter.is_meta for parameter in module.parameters())
    try:
        costs = None
        if runtime.pipeline_rank == 0:  # on all tensor ranks, since their modules communicate
            costs = costs_by_size(module) if is_sized else trace_costs(module, run, measures_times=measures_times)
        if runtime.rank == 0:
            assert costs is not None, "rank 0 is the first of its pipeline"
            plan = plan_partition(costs, configuration.partitions, memory_weight=configuration.memory_weight)
            check_parts(plan.part_of.values(), configuration.partitions)
            print(_words(plan.part_of, plan.reason), flush=True)
            runtime.groups.broadcast(dict(plan.part_of), Along.WORLD)
            return dict(plan.part_of)
    except Exception as error:
        if "does not require grad" in str(error):  # torch's message, since no tensor requires gradients in a trace
            error = ParallelError(
                "loss.backward() in a step whose model lies on several ranks: call model.backward(loss)"
            )
        if runtime.rank == 0:  # the other ranks wait for its plan or its error
            runtime.groups.broadcast(f"{type(error).__name__}: {error}", Along.WORLD)
        raise error
    found = runtime.groups.receive(0, Along.WORLD)
    if isinstance(found, str):
        raise ParallelError(f"rank 0 could not cut the model: {found}")
    parts_of_rank_0: dict[str, int] = found
    return parts_of_rank_0


def _by_hand(module: torch.nn.Module, num_parts: int, default: int) -> dict[str, int]:
    marks = marks_of(module)
    beyond = {name: part for name, part in marks.items() if part >= num_parts}
    if beyond:
        name, part = next(iter(beyond.items()))
        raise ValueError(f"module {name or 'at the root'} is placed on partition {part}; there are {num_parts}, from 0")
    names = [name for name, _ in module.named_modules()]
    wholes = indivisible_modules(module)
    marks = {name: part for name, part in marks.items() if not any(name.startswith(f"{one}.") for one in wholes)}
    parts = placed_by_hand(names, marks, default)
    holder: dict[int, str] = {}
    for name, one in module.named_modules():
        for parameter_name, parameter in one.named_parameters(recurse=False):
            first = holder.setdefault(id(parameter), name)
            if parts[first] != parts[name]:
                raise ValueError(
                    f"{first} and {name} share the parameter {parameter_name}, but are placed on partitions "
                    f"{parts[first]} and {parts[name]}: place both on the same partition"
                )
    return parts


def _words(parts: Any, reason: str) -> str:
    return str(Plan(parts, (), reason))
