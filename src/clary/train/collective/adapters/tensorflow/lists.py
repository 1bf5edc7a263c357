"""Exchange of lists of NumPy arrays over a group by few operations.

A reduction puts the arrays of one type into one block (`layout`), a broadcast puts all arrays into one. Results are
views of a block, not copies. All ranks pass the same number of arrays, of the same shapes and types, in the same order.
The first time, a list is compared with the other ranks' lists, since two different lists can fill blocks of the same
size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from clary.train._native.errors import OrderMismatch
from clary.train._native.interface import ReduceOp
from clary.train.collective.adapters.numpy import World
from clary.train.collective.adapters.tensorflow.blocks import Blocks
from clary.train.collective.adapters.tensorflow.layout import Layout, Run, lay_out

_SHOWN_CHARACTERS = 300
_DIGEST_BYTES = 8


class Lists:
    """Exchanges of lists over one group.

    All methods raise CollectiveError (OrderMismatch if lists differ between ranks); then the group cannot be used any
    more.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._blocks = Blocks()
        self._agreed: set[str] = set()

    def reduce(self, arrays: Sequence[np.ndarray], op: ReduceOp) -> list[np.ndarray]:
        """Reduce each array over all ranks.

        Args:
            arrays: of any shapes, C-contiguous; they are not written.
            op: AVG only for floating types.
        Returns: arrays of the shapes and types of `arrays`.
        Raises: TypeError for elements that cores do not know.
        """
        self._agree(f"reduce by {op.name.lower()}", arrays)
        results = list(arrays)
        for dtype, members in _by_type(arrays).items():
            own = [arrays[index] for index in members]
            layout = lay_out([array.nbytes for array in own])
            block = self._blocks.take(layout.num_bytes)
            for run in layout.runs:
                target = block[run.offset : run.offset + run.num_bytes].view(dtype)
                if run.is_read_in_place:
                    self.world.all_reduce(own[run.members[0]].reshape(-1), op, target)
                else:
                    _gather_small(own, run, layout, block)
                    self.world.all_reduce(target, op, target)
            for place, index in enumerate(members):
                results[index] = _part_of(block, layout.offsets[place], own[place])
        return results

    def broadcast(self, arrays: Sequence[np.ndarray], root: int) -> list[np.ndarray]:
        """Return the arrays of the root on all ranks.

        Args:
            arrays: of any shapes and types, C-contiguous; they are not written.
            root: rank that sends.
        """
        self._agree(f"broadcast from {root}", arrays)
        layout = lay_out([array.nbytes for array in arrays])
        block = self._blocks.take(layout.num_bytes)
        for run in layout.runs:
            if self.world.rank == root:
                _gather_small(arrays, run, layout, block)
            self.world.bcast(block[run.offset : run.offset + run.num_bytes], root)
        return [_part_of(block, layout.offsets[index], array) for index, array in enumerate(arrays)]

    def _agree(self, what: str, arrays: Sequence[np.ndarray]) -> None:
        """Compare a list that this rank passes for the first time with the lists of the other ranks."""
        words = f"{what}: {', '.join(f'{array.dtype.name}{list(array.shape)}' for array in arrays)}"
        if words in self._agreed:
            return
        digest = hashlib.blake2b(words.encode(), digest_size=_DIGEST_BYTES).digest()
        all_digests = self.world.allgather(np.frombuffer(digest, np.int64))
        own = all_digests[self.world.rank]
        others = [rank for rank in range(self.world.size) if all_digests[rank] != own]
        if others:
            error = OrderMismatch(
                f"rank {self.world.rank} calls {words[:_SHOWN_CHARACTERS]}; ranks {others} call it with tensors of "
                "other number, shapes or types, or call something else: have all ranks pass the same, in one order",
                culprit=others[0],
            )
            self.world.communicator.abort(str(error))
            raise error
        self._agreed.add(words)


def _by_type(arrays: Sequence[np.ndarray]) -> dict[np.dtype, list[int]]:
    """Return type -> indices of its arrays, in the order in which types appear."""
    found: dict[np.dtype, list[int]] = {}
    for index, array in enumerate(arrays):
        found.setdefault(array.dtype, []).append(index)
    return found


def _gather_small(arrays: Sequence[np.ndarray], run: Run, layout: Layout, block: np.ndarray) -> None:
    """Copy the arrays of a run into the block."""
    for index in run.members:
        np.copyto(_part_of(block, layout.offsets[index], arrays[index]), arrays[index])


def _part_of(block: np.ndarray, offset: int, like: np.ndarray) -> np.ndarray:
    """Return the view of a block that has the shape and type of an array."""
    return block[offset : offset + like.nbytes].view(like.dtype).reshape(like.shape)
