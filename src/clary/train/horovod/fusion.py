"""Plan of the small tensors that share an all-reduce; equal on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from clary.train.horovod.readiness import Ready
from clary.train.horovod.requests import Reduction, Verb


def plan(ready: Sequence[Ready], *, max_bytes: int, max_single_bytes: int) -> list[list[Ready]]:
    """Return batches in the order in which they run; each tensor is in exactly one.

    A batch of several tensors consists of all-reduces with the same data type, reduction and device. An Adasum tensor
    gets a batch of its own.

    Args:
        max_bytes: limit of one batch, HOROVOD_FUSION_THRESHOLD; 0 puts each tensor into a batch of its own.
        max_single_bytes: a larger tensor gets a batch of its own: copying it into the common memory costs more than it
            saves.
    """
    batches: list[list[Ready]] = []
    room: dict[tuple[int, int, str], tuple[list[Ready], int]] = {}
    for one in ready:
        what = one.description
        num_bytes = what.num_bytes
        is_small = num_bytes <= min(max_single_bytes, max_bytes)
        is_alike = what.verb is Verb.ALLREDUCE and what.reduction is not Reduction.ADASUM and not one.refusal
        if not is_small or not is_alike:
            batches.append([one])
            continue
        key = (what.dtype, what.reduction, what.place)
        batch, used = room.get(key, ([], 0))
        if not batch or used + num_bytes > max_bytes:
            batch, used = [], 0
            batches.append(batch)
        batch.append(one)
        room[key] = (batch, used + num_bytes)
    return batches
