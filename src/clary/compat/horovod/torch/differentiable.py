"""Operations that wait for their result, and through which gradients flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import asynchronous as ops
from horovod.torch.compression import Compression, Compressor

from clary.train.horovod import world

_Function: Any = torch.autograd.Function


class _Allreduce(_Function):
    @staticmethod
    def forward(ctx: Any, options: tuple[Any, ...], is_group: bool, *tensors: torch.Tensor) -> Any:
        ctx.options, ctx.is_group = options, is_group
        average, name, op, before, after, process_set = options
        if is_group:
            return ops.synchronize(ops.grouped_allreduce_async(tensors, average, name, op, before, after, process_set))
        return ops.synchronize(ops.allreduce_async(tensors[0], average, name, op, before, after, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        average, _, op, before, after, process_set = ctx.options
        options = (average, None, op, before, after, process_set)
        reduced = _Allreduce.apply(options, ctx.is_group, *(gradient.contiguous() for gradient in gradients))
        return (None, None, *(reduced if ctx.is_group else (reduced,)))


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the reduction of a tensor over all ranks.

    Args:
        tensor: of one shape and type on all ranks; the result has the same shape and type.
        average, name, op, prescale_factor, postscale_factor, process_set: as
            `asynchronous.allreduce_async`.
        compression: compressor of the tensor for sending.
    """
    compressed, kept = compression.compress(tensor)
    options = (average, name, op, prescale_factor, postscale_factor, process_set)
    return compression.decompress(_Allreduce.apply(options, False, compressed), kept)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor in place and return it; no gradients flow.

    Args:
        tensor: of one shape and type on all ranks.
        average, name, op, prescale_factor, postscale_factor, process_set: as for `allreduce`.
    """
    handle = ops.allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    return ops.synchronize(handle)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Return the reductions of several tensors, which run as one group.

    Args: as `allreduce`.
    """
    pairs = [compression.compress(tensor) for tensor in tensors]
    options = (average, name, op, prescale_factor, postscale_factor, process_set)
    reduced = _Allreduce.apply(options, True, *(compressed for compressed, _ in pairs))
    return [compression.decompress(tensor, kept) for tensor, (_, kept) in zip(reduced, pairs, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce several tensors in place and return them; no gradients flow.

    Args: as `allreduce`.
    """
    return ops.synchronize(
        ops.grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    )


class _Allgather(_Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, is_group: bool, *tensors: torch.Tensor) -> Any:
        ctx.process_set, ctx.is_group = process_set, is_group
        ctx.rows = [tensor.shape[0] if tensor.dim() else 1 for tensor in tensors]
        if is_group:
            return ops.synchronize(ops.grouped_allgather_async(tensors, name, process_set))
        return ops.synchronize(ops.allgather_async(tensors[0], name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Average the gradients of all ranks, and keep the gradients of this rank's rows."""
        index = world.ranks_of(ctx.process_set.process_set_id).index(world.rank())
        handles = [
            ops.allreduce_async(gradient.contiguous(), op=ops.Average, process_set=ctx.process_set)
            for gradient in gradients
        ]
        counts = ops.allgather_async(torch.tensor([ctx.rows]), process_set=ctx.process_set)
        reduced = [ops.synchronize(handle) for handle in handles]
        first = ops.synchronize(counts)[:index].sum(dim=0).tolist()
        parts = [whole.narrow(0, begin, rows) for whole, begin, rows in zip(reduced, first, ctx.rows, strict=True)]
        return (None, None, None, *parts)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return the tensors of all ranks, concatenated along their first axis.

    Args:
        tensor: [rows, ...]; the number of rows may differ by rank. A scalar counts as one row.
        name, process_set: as for `asynchronous.allgather_async`.
    """
    return _Allgather.apply(name, process_set, False, tensor)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the result of `allgather` for each of several tensors, which run as one group.

    Args: as `asynchronous.allgather_async`.
    """
    return _Allgather.apply(name, process_set, True, *tensors)


class _Broadcast(_Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return ops.synchronize(ops.broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the average of all gradients on the root, and zeros on the other ranks."""
        handle = ops.allreduce_async(gradient.contiguous(), op=ops.Average, process_set=ctx.process_set)
        reduced = ops.synchronize(handle)
        if world.rank() != ctx.root_rank:
            reduced = torch.zeros_like(reduced)
        return reduced, None, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return the tensor of one rank on all ranks.

    Args:
        tensor: of one shape and type on all ranks; the result has the same shape and type.
        root_rank, name, process_set: as for `asynchronous.broadcast_async`.
    """
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Overwrite the tensor of all ranks with the tensor of one rank, and return it; no gradients flow.

    Args:
        tensor: of one shape and type on all ranks.
        root_rank, name, process_set: as for `asynchronous.broadcast_async`.
    """
    return ops.synchronize(ops.broadcast_async_(tensor, root_rank, name, process_set))


class _Alltoall(_Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        output, received = ops.synchronize(ops.alltoall_async(tensor, splits, name, process_set))
        ctx.process_set, ctx.received = process_set, received
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        """Send the gradients back to the ranks that the rows came from."""
        handle = ops.alltoall_async(gradient.contiguous(), ctx.received, process_set=ctx.process_set)
        return ops.synchronize(handle)[0], None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its rows of the tensor, and return the received rows in rank order.

    With `splits`, the number of rows from each rank is a second result, as a tensor [ranks] of int32.

    Args:
        tensor: [rows, ...]; the number of rows may differ by rank.
        splits, name, process_set: as for `asynchronous.alltoall_async`.

    Raises: ValueError for splits that do not fit.
    """
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


class _Reducescatter(_Function):
    @staticmethod
    def forward(ctx: Any, options: tuple[Any, ...], is_group: bool, *tensors: torch.Tensor) -> Any:
        ctx.options, ctx.is_group = options, is_group
        name, op, process_set, before, after = options
        if is_group:
            return ops.synchronize(ops.grouped_reducescatter_async(tensors, name, op, process_set, before, after))
        return ops.synchronize(ops.reducescatter_async(tensors[0], name, op, process_set, before, after))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Gather all rows' gradients on all ranks; for `Sum`, multiply by the number of ranks, as Horovod does."""
        _, op, process_set, before, after = ctx.options
        factor = before * after
        if op == ops.Sum:
            factor *= len(world.ranks_of(process_set.process_set_id))
        handles = [ops.allgather_async(gradient.contiguous(), process_set=process_set) for gradient in gradients]
        parts = [ops.synchronize(handle) * factor for handle in handles]
        return (None, None, *parts)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = ops.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce a tensor and return this rank's rows of the result.

    Args:
        tensor: [rows, ...], of one shape on all ranks; the first ranks get one row more if rows do not divide evenly.
        compression: compressor of the tensor for sending.
        name, op, process_set, prescale_factor, postscale_factor: as
            `asynchronous.reducescatter_async`.
    """
    compressed, kept = compression.compress(tensor)
    options = (name, op, process_set, prescale_factor, postscale_factor)
    return compression.decompress(_Reducescatter.apply(options, False, compressed), kept)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = ops.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Return the result of `reducescatter` for each of several tensors, which run as one group.

    Args: as `reducescatter`.
    """
    pairs = [compression.compress(tensor) for tensor in tensors]
    options = (name, op, process_set, prescale_factor, postscale_factor)
    reduced = _Reducescatter.apply(options, True, *(compressed for compressed, _ in pairs))
    return [compression.decompress(tensor, kept) for tensor, (_, kept) in zip(reduced, pairs, strict=True)]
