"""Communication steps between the ranks of a tensor group, each with its gradient.

[Note: pairs] A tensor on a tensor group is replicated (all ranks hold equal values), split along a dimension (each rank
holds its slice, in the order of ranks) or partial (the value is the sum over the ranks). The gradient of a replicated
tensor is replicated, the gradient of a split tensor is split along the same dimension, and the gradient of a partial
tensor is replicated. A replicated tensor that every rank uses differently ("used apart") has a partial gradient. So
each step's gradient is another step:

    step            from        to          forward                 gradient
    copy            replicated  used apart  nothing                 all-reduce
    reduce          partial     replicated  all-reduce              nothing
    scatter         replicated  split       keep own slice          all-gather
    gather          split       replicated  all-gather              keep own slice
    all_gather      split       used apart  all-gather              reduce-scatter
    reduce_scatter  partial     split       reduce-scatter          all-gather
    exchange        split       split       all-to-all              all-to-all back

Source: arXiv 1909.08053 section 3 (copy, reduce); arXiv 2205.05198 section 4 (all_gather, reduce_scatter).

Every rank of the group must run the same steps in the same order; shapes must be equal on all ranks. The process
group's own timeout bounds every wait. Second derivatives are not defined.
Shapes: T ranks of the group, L whole length of the cut dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from clary.train.parallel.equal_parts import add_up_part, gather_parts

Step = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class TensorGroup:
    """The ranks that together hold one layer.

    Args:
        process_group: may be None for a single rank, which never communicates.
        rank: rank of this process in the group.
    """

    process_group: Any
    rank: int
    size: int

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorGroup:
        """Return the group itself, since copies of a module use the same ranks."""
        return self

    def divide(self, number: int, what: str) -> int:
        """Return `number` divided by the size of the group.

        Raises: NotDivisibleError naming `what`.
        """
        if number % self.size:
            raise NotDivisibleError(
                f"{what} is {number}, no multiple of tensor_parallel_degree, which is {self.size}: "
                "choose another size, or leave tensor parallelism off here"
            )
        return number // self.size


class NotDivisibleError(ValueError):
    """A size that the tensor group does not divide."""


def copy(tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Return a replicated `tensor` for a different use on every rank; see [Note: pairs]."""
    return _step(tensor, group, _same, lambda gradient: _all_reduce(gradient, group))


def reduce(tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Return the sum of the ranks' partial tensors; see [Note: pairs]."""
    return _step(tensor, group, lambda value: _all_reduce(value, group), _same)


def scatter(tensor: torch.Tensor, group: TensorGroup, dimension: int) -> torch.Tensor:
    """Return this rank's slice of a replicated tensor along `dimension`; see [Note: pairs].

    Args:
        tensor: [..., L, ...], equal on all ranks; the result is [..., L/T, ...].
        dimension: dimension of length L; negative values count from the end.

    Raises: NotDivisibleError if the group's size does not divide L.
    """
    return _step(
        tensor, group, lambda value: _own_slice(value, group, dimension), lambda grad: _gather(grad, group, dimension)
    )


def gather(tensor: torch.Tensor, group: TensorGroup, dimension: int) -> torch.Tensor:
    """Return all slices, concatenated along `dimension`, for the same use on every rank; see [Note: pairs].

    Args:
        tensor: [..., L/T, ...], this rank's slice; the result is [..., L, ...], equal on all ranks.
        dimension: dimension of the slices; negative values count from the end.
    """
    return _step(
        tensor, group, lambda value: _gather(value, group, dimension), lambda grad: _own_slice(grad, group, dimension)
    )


def all_gather(tensor: torch.Tensor, group: TensorGroup, dimension: int) -> torch.Tensor:
    """Return all slices, concatenated along `dimension`, for a different use on every rank; see [Note: pairs].

    Args: as `gather`; the gradient is [..., L, ...] and differs by rank.
    """
    return _step(
        tensor,
        group,
        lambda value: _gather(value, group, dimension),
        lambda gradient: _reduce_scatter(gradient, group, dimension),
    )


def reduce_scatter(tensor: torch.Tensor, group: TensorGroup, dimension: int) -> torch.Tensor:
    """Return this rank's slice along `dimension` of the sum of partial tensors; see [Note: pairs].

    Args:
        tensor: [..., L, ...], this rank's addend; the result is [..., L/T, ...].
        dimension: dimension of length L; negative values count from the end.

    Raises: NotDivisibleError if the group's size does not divide L.
    """
    return _step(
        tensor,
        group,
        lambda value: _reduce_scatter(value, group, dimension),
        lambda gradient: _gather(gradient, group, dimension),
    )


def exchange(tensor: torch.Tensor, group: TensorGroup, *, cut: int, join: int) -> torch.Tensor:
    """Re-split a tensor from dimension `join` to dimension `cut`; see [Note: pairs].

    Args:
        cut: the dimension that becomes shorter; its length is a multiple of the group's size.
        join: the dimension that becomes longer, by concatenation in rank order.
    """
    return _step(
        tensor,
        group,
        lambda value: _all_to_all(value, group, cut, join),
        lambda gradient: _all_to_all(gradient, group, join, cut),
    )


def scale_gradient(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Return `tensor`; backward multiplies its gradient by `factor`.

    Args:
        tensor: of any shape.
    """
    return tensor if factor == 1 else _Pair.apply(tensor, _same, lambda gradient: gradient * factor)


def gather_whole(tensor: torch.Tensor, group: TensorGroup, dimension: int = 0) -> torch.Tensor:
    """Return all slices, concatenated along `dimension`, without a gradient; any dtype.

    Args:
        tensor: [..., L/T, ...], this rank's slice; the result is [..., L, ...].
        dimension: dimension of the slices.
    """
    if group.size == 1:
        return tensor
    is_boolean = tensor.dtype == torch.bool  # some backends cannot send this dtype
    whole = _gather(tensor.detach().to(torch.uint8) if is_boolean else tensor.detach(), group, dimension)
    return whole.bool() if is_boolean else whole


def broadcast_first(tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Return the first rank's values, written into the memory of `tensor`, without a gradient.

    Args:
        tensor: of the same shape and dtype on all ranks, contiguous.
    """
    if group.size > 1:
        dist.broadcast(tensor, group=group.process_group, group_src=0)
    return tensor


def first_values(tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Return a copy of the first rank's tensor, without a gradient. All ranks call it.

    If this rank's tensor is on the meta device, the result is on the rank's compute device. A single rank gets its own
    tensor, detached.

    Args:
        tensor: of the same shape and dtype on all ranks.
    """
    if group.size == 1:
        return tensor.detach()
    has_gpu = torch.cuda.is_available()
    own = torch.device("cuda", torch.cuda.current_device()) if has_gpu else torch.device("cpu")
    home = own if tensor.is_meta else tensor.device
    sent = torch.empty_like(tensor, device=home) if tensor.is_meta else tensor.detach().clone()
    return broadcast_first(sent.to(reachable(group, home)).contiguous(), group).to(home)


def reachable(group: TensorGroup, home: torch.device) -> torch.device:
    """Return a device from which the group's backend can send: `home`, or the current GPU if the backend is NCCL."""
    is_nccl = group.size > 1 and "nccl" in str(dist.get_backend(group.process_group))
    return torch.device("cuda", torch.cuda.current_device()) if is_nccl else home


def gather_into(whole: torch.Tensor, tensor: torch.Tensor, group: TensorGroup) -> None:
    """Write all ranks' tensors to `whole`, concatenated along the first dimension, without a gradient.

    Args:
        whole: [T n, ...], overwritten.
        tensor: [n, ...], this rank's tensor.
    """
    gather_parts(whole, tensor, group.process_group)


class _Pair(torch.autograd.Function):
    """A step, and the step that computes its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, step: Step, gradient_step: Step) -> torch.Tensor:
        ctx.gradient_step = gradient_step
        return step(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.gradient_step(gradient), None, None


def _step(tensor: torch.Tensor, group: TensorGroup, step: Step, gradient_step: Step) -> torch.Tensor:
    return tensor if group.size == 1 else _Pair.apply(tensor, step, gradient_step)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view_as(tensor)


def _all_reduce(tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group.process_group)
    return total


def _own_slice(tensor: torch.Tensor, group: TensorGroup, dimension: int) -> torch.Tensor:
    length = group.divide(tensor.shape[dimension], f"dimension {dimension} of a tensor of shape {tuple(tensor.shape)}")
    return tensor.narrow(dimension, group.rank * length, length).contiguous()


def _gather(tensor: torch.Tensor, group: TensorGroup, dimension: int) -> torch.Tensor:
    tensor = tensor.contiguous()
    parts = tensor.new_empty((group.size, *tensor.shape))
    gather_into(parts.flatten(0, 1), tensor, group)
    return _behind_each_other(parts, dimension)


def _reduce_scatter(tensor: torch.Tensor, group: TensorGroup, dimension: int) -> torch.Tensor:
    parts = _parts(tensor, group, dimension)
    own = torch.empty_like(parts[0])
    add_up_part(own, parts.flatten(0, 1), group.process_group)
    return own


def _all_to_all(tensor: torch.Tensor, group: TensorGroup, cut: int, join: int) -> torch.Tensor:
    parts = _parts(tensor, group, cut)
    received = torch.empty_like(parts)
    dist.all_to_all_single(received.flatten(0, 1), parts.flatten(0, 1), group=group.process_group)
    return _behind_each_other(received, join)


def _parts(tensor: torch.Tensor, group: TensorGroup, dimension: int) -> torch.Tensor:
    """Return the slices along `dimension`, stacked along a new first dimension, as a contiguous tensor."""
    group.divide(tensor.shape[dimension], f"dimension {dimension} of a tensor of shape {tuple(tensor.shape)}")
    if dimension == 0:
        return tensor.contiguous().unflatten(0, (group.size, -1))
    return torch.stack(tensor.chunk(group.size, dimension))


def _behind_each_other(parts: torch.Tensor, dimension: int) -> torch.Tensor:
    """Concatenate slices, stacked along the first dimension, along `dimension`."""
    return parts.flatten(0, 1) if dimension == 0 else torch.cat(list(parts.unbind()), dimension)
