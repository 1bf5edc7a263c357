"""Plans of the part that each rank writes: all ranks agree on them once, and again only if tensors have changed.

Where: torch.distributed.checkpoint supplies the metadata, the rule for tensors that several ranks replicate, and the
division into pieces on restoring. So any number of ranks can read a checkpoint of any other number of ranks.

[Note: one rank's values] A model's tensor that several ranks replicate is written by one of them; such tensors are
distributed evenly. The whole of any other value (its name begins with `=`) comes from the lowest rank that has it: the
counters of one rank are never saved with the random generator of another.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.planner import SavePlan, WriteItemType
from torch.distributed.tensor import DTensor

from clary.train.checkpoint.parts import Key
from clary.train.checkpoint.ranks import Ranks

VALUE_MARK = "="  # prefix of the names of values that are not tensors of a model or an optimizer
ALIGNMENT = 64  # bytes; a cache line, and a multiple of every element's size


@dataclass(frozen=True, kw_only=True)
class PlannedTensor:
    """A tensor, or this rank's piece of a tensor, and its offset in the part."""

    key: Key
    start: int
    num_bytes: int
    dtype: torch.dtype
    shape: torch.Size


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The part that this rank writes. `metadata`, pickled and equal on all ranks, describes the parts of all ranks."""

    signature: list[Any]
    tensors: list[PlannedTensor]
    values: list[str]
    metadata: bytes
    num_bytes: int  # bytes of all tensors with padding
    uses_cuda: bool


def signature(flat: dict[str, Any]) -> list[Any]:
    """Return the facts that a plan depends on: states with equal signatures have equal plans."""
    return [
        (
            name,
            one.shape,
            one.dtype,
            one.device.type,
            (one.placements, id(one.device_mesh)) if isinstance(one, DTensor) else None,
        )
        if isinstance(one, torch.Tensor)
        else (name,)
        for name, one in flat.items()
    ]


def agree_on_plan(ranks: Ranks, flat: dict[str, Any]) -> Plan:
    """Agree with the other ranks on the part that each writes.

    Raises: CheckpointError on all ranks if one rank failed.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)

    def whole(plans: list[SavePlan]) -> list[tuple[SavePlan, bytes]]:
        plans, metadata = planner.create_global_plan(_without_repeated_values(plans))
        pickled = pickle.dumps(metadata)
        return [(plan, pickled) for plan in plans]

    plan, metadata = ranks.map(
        "planning a checkpoint", lambda: create_default_local_save_plan(flat, ranks.is_coordinator), whole
    )
    tensors, values, at = [], [], 0
    for item in plan.items:
        if item.type == WriteItemType.BYTE_IO:
            values.append(item.index.fqn)
            continue
        shape, dtype = item.tensor_data.chunk.sizes, item.tensor_data.properties.dtype
        num_bytes = math.prod(shape) * dtype.itemsize
        key = (item.index.fqn, tuple(item.tensor_data.chunk.offsets))
        tensors.append(PlannedTensor(key=key, start=at, num_bytes=num_bytes, dtype=dtype, shape=shape))
        at += -(-num_bytes // ALIGNMENT) * ALIGNMENT
    return Plan(
        signature=signature(flat),
        tensors=tensors,
        values=values,
        metadata=metadata,
        num_bytes=at,
        uses_cuda=any(isinstance(one, torch.Tensor) and one.is_cuda for one in flat.values()),
    )


def _without_repeated_values(plans: list[SavePlan]) -> list[SavePlan]:
    seen: set[str] = set()
    kept = []
    for plan in plans:
        items = [item for item in plan.items if item.index.fqn not in seen]
        seen.update(
            item.index.fqn
            for item in items
            if item.index.fqn.startswith(VALUE_MARK) and item.type != WriteItemType.SHARD  # a rank has only some shards
        )
        kept.append(dataclasses.replace(plan, items=items))
    return kept
