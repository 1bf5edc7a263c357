"""The number of steps between asynchronous saves, computed from measured durations of steps and of saves.

Where: callbacks that save local states measure some steps with a save, then some without, and call
`compute_auto_checkpoint_interval` once. A save must be written before the next one begins, on every rank: the interval
is the longest write of any rank divided by the shortest step.
Source: the callers in aws/sagemaker-hyperpod-training-adapter-for-nemo (Apache-2.0), `utils/callbacks/checkpoint.py`
and its tests: the durations that they pass, and the agreement of ranks on the shortest step and the longest write.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from clary.train.parallel.tensor.collectives import TensorGroup, reachable


@dataclass
class Interval:
    """The interval between saves and the durations that determine it, equal on all ranks.

    Callbacks store it as a dict, and restore it from the dict.

    Args:
        interval: steps from one save to the next; -1 before it is known.
        step_duration: shortest step without a save, in seconds.
        step_ckpt_duration: longest step with a save, in seconds.
        ckpt_preprocessing_duration: longest time for which a save blocked training, in seconds.
        ckpt_io_duration: longest write of a save, in seconds.
    """

    interval: int = -1
    step_duration: float = 0.0
    step_ckpt_duration: float = 0.0
    ckpt_preprocessing_duration: float = 0.0
    ckpt_io_duration: float = 0.0


def compute_auto_checkpoint_interval(
    step_durations: Sequence[float],
    step_ckpt_durations: Sequence[float],
    ckpt_preprocessing_durations: Sequence[float],
    ckpt_io_durations: Sequence[float],
) -> Interval:
    """Return the interval: the least number of steps that cover the write of a save. All ranks of the program call it.

    Args:
        step_durations: durations of steps without a save; in seconds, like all durations here.
        step_ckpt_durations: durations of steps with a save.
        ckpt_preprocessing_durations: times for which saves blocked training.
        ckpt_io_durations: times for which saves were written while training continued.

    Raises: ValueError on every rank if any rank has no durations of a kind, or a duration is not finite or below 0, or
        that of a step without a save is 0.
    """
    measured = {
        "step_durations": list(step_durations),
        "step_ckpt_durations": list(step_ckpt_durations),
        "ckpt_preprocessing_durations": list(ckpt_preprocessing_durations),
        "ckpt_io_durations": list(ckpt_io_durations),
    }
    # The maximum of a NaN is undefined in reductions, so a flag for invalid durations is reduced too.
    is_right = all(own and all(math.isfinite(one) and one >= 0 for one in own) for own in measured.values())
    is_right = is_right and min(step_durations) > 0
    longest = [max(own) for own in measured.values()][1:] if is_right else [0.0] * 3
    shortest = min(step_durations) if is_right else 0.0
    told = torch.tensor([float(not is_right), -shortest, *longest], dtype=torch.float64)
    if dist.is_available() and dist.is_initialized():
        group = TensorGroup(dist.group.WORLD, dist.get_rank(), dist.get_world_size())
        told = told.to(reachable(group, torch.device("cpu")))
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
    anyone_wrong, negative, with_save, held_up, written = told.tolist()
    if anyone_wrong:
        own = ", ".join(f"{kind} {durations!r}" for kind, durations in measured.items())
        raise ValueError(
            "compute_auto_checkpoint_interval: every rank needs one duration or more of each kind, finite, in "
            f"seconds, above 0 for steps without a save; got {own} on this "
            f"rank{(', and others on another' if is_right else '')}"
        )
    step = -negative
    return Interval(max(1, math.ceil(written / step)), step, with_save, held_up, written)
