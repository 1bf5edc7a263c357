"""Ranks that act together: if one rank fails, all raise an error.

Where: checkpoints of `Keeper` and of torch.sagemaker (`parallel.fsdp.checkpoint.saving`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from clary.train.checkpoint.errors import CheckpointError

T = TypeVar("T")


@dataclass
class Ranks:
    """The ranks that save together; a single process saves alone.

    Args:
        coordinator: rank in the default group; it combines the parts of all ranks.
        failure: type of the error on all ranks if one rank fails.
        consequence: text after "failed" in the error.
    """

    group: Any = None
    coordinator: int = 0
    failure: type[Exception] = CheckpointError
    consequence: str = ""

    def __post_init__(self) -> None:
        self.is_alone = not dist.is_initialized()
        if not self.is_alone:
            self.group = dist.group.WORLD if self.group is None else self.group
            members = dist.get_process_group_ranks(self.group)
            if self.coordinator not in members:
                raise ValueError(
                    f"coordinator_rank is {self.coordinator}, which is not in process_group: its ranks are {members}"
                )

    @property
    def is_coordinator(self) -> bool:
        """Whether this rank is the coordinator."""
        return self.is_alone or dist.get_rank() == self.coordinator

    @property
    def rank(self) -> int:
        """This rank's number in the group."""
        return 0 if self.is_alone else dist.get_rank(self.group)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return 1 if self.is_alone else dist.get_world_size(self.group)

    def all(self, value: Any) -> list[Any]:
        """Return the value of every rank, by rank. Values are pickled, so they should be few and small."""
        if self.is_alone:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def highest(self, *values: int) -> list[int]:
        """Return the maximum of each value over all ranks. The group must support tensors on the CPU."""
        if self.is_alone:
            return list(values)
        found = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return [int(one) for one in found.tolist()]

    def together(self, what: str, part: Callable[[], T]) -> T:
        """Call a function, wait until it has returned on all ranks, and return its result.

        Raises: `failure` on all ranks if the function raised on any rank; it names these ranks.
        """
        made: list[T] = []
        self.map(what, lambda: made.append(part()), lambda told: told)
        return made[0]

    def map(self, what: str, part: Callable[[], Any], whole: Callable[[list[Any]], list[Any]]) -> Any:
        """Call `part` on every rank, combine the results on the coordinator, and return this rank's piece of them.

        Args:
            part: called on every rank; its result is pickled.
            whole: called on the coordinator with the results by rank; returns a piece for each rank.
            what: description of the operation, for the error.
        Raises: `failure` on all ranks if `part` raised on any rank or `whole` raised; it names the ranks whose `part`
            raised.
        """
        told = _attempt(part)
        if self.is_alone:
            made = _attempt(lambda: whole([told[1]])[0]) if told[0] else told
            return self._result(what, made if made[0] else (False, f"rank 0: {made[1]}"))
        num_ranks = dist.get_world_size(self.group)
        gathered: list[Any] | None = [None] * num_ranks if self.is_coordinator else None
        dist.gather_object(told, gathered, dst=self.coordinator, group=self.group)
        pieces: list[Any] | None = None
        if gathered is not None:
            members = dist.get_process_group_ranks(self.group)
            failures = [f"rank {rank}: {one[1]}" for rank, one in zip(members, gathered, strict=True) if not one[0]]
            if failures:
                pieces = [(False, "\n".join(failures))] * num_ranks
            else:
                parts = [one[1] for one in gathered]
                made = _attempt(lambda: whole(parts))
                pieces = [(True, piece) for piece in made[1]] if made[0] else [made] * num_ranks
        piece: list[Any] = [None]
        dist.scatter_object_list(piece, pieces, src=self.coordinator, group=self.group)
        return self._result(what, piece[0])

    def _result(self, what: str, told: tuple[bool, Any]) -> Any:
        if not told[0]:
            raise self.failure(f"{what} failed{self.consequence}. {told[1]}")
        return told[1]


def _attempt(function: Callable[[], Any]) -> tuple[bool, Any]:
    """Call a function; return True with its result, or False with its traceback."""
    try:
        return True, function()
    except Exception:  # noqa: BLE001 - told to all ranks, each of which raises it
        return False, traceback.format_exc()
