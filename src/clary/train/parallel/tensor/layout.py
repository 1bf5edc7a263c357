"""The layout of hidden states over a tensor group, outside and inside of distributed modules.

Shapes: N rows of this rank's batch, S positions, H channels, T ranks of the group, M rows inside: N with
`prescaled_batch`, T x N without.

[Note: layouts] Outside of a distributed module, hidden states are [N, S, H]. Without `prescaled_batch`, every rank of
the group passes its own batch; with it, all ranks pass the same batch. Inside, all ranks work on all M rows, and
between two layers hidden states are

    optimize=memory   [M, S, H/T], split: every rank holds different channels
    optimize=speed    [M, S, H], replicated: a layer needs fewer communication steps

Inside a layer both are cut in the same way: by heads in attention, by intermediate channels in the output layer.
Batches must have equal shapes on all ranks of the group, including padding, since ranks do not exchange shapes.

[Note: mean] Inside a distributed module, gradients are those of the mean of the group's losses. With `prescaled_batch`,
there is one loss, which every rank computes. Without it, rank t has the loss L_t of its own batch: where backward
enters a distributed module, gradients are gathered and divided by T; where backward leaves the module, they are
multiplied by T. So every parameter of a distributed module, slice or replica, holds d(mean over t of L_t), equal on all
ranks that hold a replica, and the mean over rdp is the mean over the global batch. A parameter outside holds d(L_t), or
d(L) with `prescaled_batch`, and is averaged over dp. Neither kind of parameter needs another factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from clary.train.parallel.tensor.collectives import (
    TensorGroup,
    all_gather,
    copy,
    exchange,
    gather,
    gather_whole,
    reduce,
    reduce_scatter,
    scale_gradient,
    scatter,
)


@dataclass(frozen=True)
class Layout:
    """The layout of one distributed module; see [Note: layouts].

    Args:
        is_split: whether hidden states in the inside layout are split (optimize=memory).
        is_prescaled: whether all ranks of the group pass the same batch.
    """

    group: TensorGroup
    is_split: bool
    is_prescaled: bool

    @property
    def split_dimension(self) -> int | None:
        """The dimension along which a parameter [H] is cut; None if every rank holds it whole."""
        return 0 if self.is_split else None

    def enter(self, hidden_NSH: torch.Tensor) -> torch.Tensor:
        """Convert hidden states [N, S, H] to the inside layout: [M, S, H/T] or [M, S, H]."""
        if self.is_split:
            return self.enter_split(hidden_NSH)
        if self.is_prescaled:
            return hidden_NSH
        return gather(scale_gradient(hidden_NSH, self.group.size), self.group, 0)

    def enter_split(self, hidden_NSH: torch.Tensor) -> torch.Tensor:
        """Convert an outside tensor [N, ..., H] to [M, ..., H/T], even if the inside layout is replicated."""
        if self.is_prescaled:
            return scatter(hidden_NSH, self.group, -1)
        return exchange(scale_gradient(hidden_NSH, self.group.size), self.group, cut=-1, join=0)

    def enter_rows(self, tensor: torch.Tensor, num_rows: int) -> torch.Tensor:
        """Return a tensor without gradient, such as a mask, with all M rows.

        Args:
            tensor: [N, ...], or [1, ...] if it is the same for every row.
            num_rows: N.
        """
        if self.is_prescaled or self.group.size == 1:
            return tensor
        return gather_whole(tensor.expand(num_rows, *tensor.shape[1:]), self.group)

    def leave(self, hidden: torch.Tensor) -> torch.Tensor:
        """Convert inside hidden states to the outside layout, [N, S, H]."""
        if self.is_split:
            return self.leave_split(hidden)
        if self.is_prescaled:
            return hidden
        return scale_gradient(scatter(hidden, self.group, 0), 1 / self.group.size)

    def leave_split(self, hidden: torch.Tensor) -> torch.Tensor:
        """Convert an inside tensor [M, ..., H/T] to [N, ..., H]: the inverse of `enter_split`."""
        if self.is_prescaled:
            return gather(hidden, self.group, -1)
        return scale_gradient(exchange(hidden, self.group, cut=0, join=-1), 1 / self.group.size)

    def leave_partial(self, partial: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of the sum of the ranks' tensors [M, ...]."""
        if self.is_prescaled:
            return reduce(partial, self.group)
        return scale_gradient(reduce_scatter(partial, self.group, 0), 1 / self.group.size)

    def outside(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return a replicated parameter, for addition to outside tensors, with the gradient of [Note: mean]."""
        if self.is_prescaled:
            return parameter
        return copy(scale_gradient(parameter, 1 / self.group.size), self.group)

    def whole(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return inside hidden states as [M, S, H], for use with each rank's own columns of a weight."""
        return all_gather(hidden, self.group, -1) if self.is_split else copy(hidden, self.group)

    def add_up(self, partial: torch.Tensor) -> torch.Tensor:
        """Sum the ranks' products [M, S, H]; return the inside layout: [M, S, H/T] or [M, S, H]."""
        return reduce_scatter(partial, self.group, -1) if self.is_split else reduce(partial, self.group)

    def from_split(self, hidden: torch.Tensor) -> torch.Tensor:
        """Convert [M, S, H/T] to the inside layout."""
        return hidden if self.is_split else gather(hidden, self.group, -1)

    def to_split(self, hidden: torch.Tensor) -> torch.Tensor:
        """Convert inside hidden states to [M, S, H/T]."""
        return hidden if self.is_split else scatter(hidden, self.group, -1)
