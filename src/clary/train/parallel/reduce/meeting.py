"""Agreement on a reduction: before the gradients, each rank sends its purpose in a small message.

A replica may have had no backward pass in a step, or no more batches. The other replicas do not know this, and would
wait. So a rank that steps its optimizer without a reduction announces it, and takes part in the reduction of the other
ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import torch
import torch.distributed as dist

from clary.train.parallel.errors import ParallelError

_KINDS = 4  # larger than every `Doing`: a message packs steps and purpose into one number per rank


class Doing(IntEnum):
    """The purpose of a rank at a meeting."""

    REDUCES = 1
    STEPS = 2  # its optimizer is about to step, and it had no gradients
    HAS_ENDED = 3  # it has no more batches; see `DistributedModel.join`


@dataclass(frozen=True)
class Present:
    """The ranks of a group at one meeting, with the purpose of each."""

    doing: dict[int, Doing]  # by global rank

    def who(self, doing: Doing) -> list[int]:
        """Return the ranks with this purpose."""
        return [rank for rank, found in self.doing.items() if found is doing]


class MeetingPoint:
    """Exchanges the purposes of the ranks of one group.

    Args:
        device: device of the group's messages.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group = group
        self._device = device
        self._ranks = dist.get_process_group_ranks(group)
        self._own = dist.get_rank(group)

    def begin(self, doing: Doing, num_steps: int) -> Callable[[], Present]:
        """Send `doing` to the other ranks; return a function that waits for theirs. All ranks of the group call it.

        Args:
            num_steps: number of steps that the optimizer has taken.

        Raises: ParallelError, from the returned function, if optimizers have taken different numbers of steps.
        """
        told = torch.zeros(len(self._ranks), dtype=torch.int64, device=self._device)
        told[self._own] = num_steps * _KINDS + doing
        work = dist.all_reduce(told, group=self._group, async_op=True)

        def wait() -> Present:
            work.wait()
            heard = [divmod(value, _KINDS) for value in told.tolist()]
            found = Present({rank: Doing(kind) for rank, (_, kind) in zip(self._ranks, heard, strict=True)})
            self._check({rank: steps for rank, (steps, _) in zip(self._ranks, heard, strict=True)}, found)
            return found

        return wait

    def begin_sum(self, values: list[float]) -> Callable[[], list[float]]:
        """Sum lists over the ranks, by element; return a function that waits for the sums. All ranks call it."""
        told = torch.tensor(values, device=self._device)
        work = dist.all_reduce(told, group=self._group, async_op=True)

        def wait() -> list[float]:
            work.wait()
            return [float(one) for one in told.tolist()]

        return wait

    def all_of(self, value: int) -> list[int]:
        """Gather one integer from every rank, by group rank. All ranks of the group call it."""
        own = [float(value) if place == self._own else 0.0 for place in range(len(self._ranks))]
        return [int(one) for one in self.begin_sum(own)()]

    def _check(self, steps: dict[int, int], found: Present) -> None:
        at_work = {rank: steps[rank] for rank in found.doing if found.doing[rank] is not Doing.HAS_ENDED}
        if len(set(at_work.values())) > 1:
            words = ", ".join(f"rank {rank} has taken {number}" for rank, number in at_work.items())
            raise ParallelError(
                f"replicas average gradients of different steps of their optimizers: {words}; a replica has "
                "left out a backward pass or a step of its optimizer: make all replicas run the same passes "
                "and steps, or use model.join()"
            )
