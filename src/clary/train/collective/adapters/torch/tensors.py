"""Tensors that a core can take, as an address, a count and a type.

A core reads and writes host memory that lies in one piece. Any other tensor (transposed, or every other element) is
copied into such memory, and copied back if it is written. Contiguous tensors are not copied, except views that torch
marks as conjugated or negated (`x.conj()`): their memory holds other numbers than the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.distributed import AllreduceOptions, ReduceOp

from clary.train._native.interface import Dtype
from clary.train._native.interface import ReduceOp as CoreOp

DTYPES: dict[torch.dtype, int] = {
    torch.float32: int(Dtype.FLOAT32),
    torch.float64: int(Dtype.FLOAT64),
    torch.float16: int(Dtype.FLOAT16),
    torch.bfloat16: int(Dtype.BFLOAT16),
    torch.int8: int(Dtype.INT8),
    torch.int16: int(Dtype.INT16),
    torch.int32: int(Dtype.INT32),
    torch.int64: int(Dtype.INT64),
    torch.uint8: int(Dtype.UINT8),
    torch.bool: int(Dtype.BOOL),
}
BYTES = int(Dtype.UINT8)
_SUM, _AVG = int(CoreOp.SUM), int(CoreOp.AVG)
_LINEAR = (_SUM, _AVG)
_INTEGERS = frozenset((torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8))

# Source of `CORE_OPS`, which is keyed by the number of torch's operation; that number is also its hash.
_OPS: tuple[tuple[object, CoreOp], ...] = (
    (ReduceOp.SUM, CoreOp.SUM),
    (ReduceOp.AVG, CoreOp.AVG),
    (ReduceOp.PRODUCT, CoreOp.PRODUCT),
    (ReduceOp.MIN, CoreOp.MIN),
    (ReduceOp.MAX, CoreOp.MAX),
    (ReduceOp.BAND, CoreOp.BAND),
    (ReduceOp.BOR, CoreOp.BOR),
    (ReduceOp.BXOR, CoreOp.BXOR),
)
CORE_OPS: dict[int, int] = {int(op): int(core_op) for op, core_op in _OPS}  # type: ignore[call-overload]


def tensors_are_read_by(core: Any) -> bool:
    """Give a core the tables that it needs to read plain tensors itself; return whether it can.

    It cannot before torch 2.7, because options of older versions do not say whether the caller waits.
    """
    know = getattr(core, "know_tensors", None)
    if know is None or not hasattr(AllreduceOptions, "asyncOp"):
        return False
    return bool(know((torch.Tensor, torch.nn.Parameter), torch.strided, DTYPES, CORE_OPS))


def core_op(op: ReduceOp) -> int:
    """Return the core's number for torch's operation.

    Raises:
        NotImplementedError: PREMUL_SUM, which scales each rank's input.
    """
    number = CORE_OPS.get(hash(op))
    if number is None:
        raise NotImplementedError(
            f"backend smddp does not support ReduceOp {op.op}; scale the tensor, then use ReduceOp.SUM"
        )
    return number


def averages_integers(tensor: torch.Tensor, opts: Any) -> bool:
    """Whether options of torch ask for an average of integers, which the core does not know.

    Args:
        tensor: of any shape.
        opts: torch's options of the call; read only for tensors that are not floating, since reading takes time.
    """
    if tensor.is_floating_point():
        return False
    return hash(opts.reduceOp) == hash(ReduceOp.AVG) and tensor.dtype in _INTEGERS


def reduction_of(buffer: torch.Tensor, opts: Any, num_ranks: int) -> tuple[int, Callable[[], None] | None]:
    """Return the core's number for torch's operation, and a function that completes its result, or None.

    An average of integers is their sum, divided at the end and rounded toward zero, as over NCCL.

    Args:
        buffer: the result, of any shape; dense.
        opts: torch's options of the call.
    Raises: as `core_op`.
    """
    if averages_integers(buffer, opts):
        return _SUM, partial(_divide, buffer, num_ranks)
    return core_op(opts.reduceOp), None


def _divide(buffer: torch.Tensor, num_ranks: int) -> None:
    with torch.no_grad():
        if num_ranks <= torch.iinfo(buffer.dtype).max:
            buffer.div_(num_ranks, rounding_mode="trunc")
        else:  # the type does not hold the divisor: as int8, 200 would be -56
            buffer.copy_(buffer.long().div_(num_ranks, rounding_mode="trunc"))


def check_memory(tensor: torch.Tensor, operation: str) -> None:
    """Refuse a tensor of any shape that has no plain host memory.

    Raises:
        NotImplementedError: it is sparse, or lies on a device that this backend does not serve.
    """
    if tensor.layout is not torch.strided:
        raise NotImplementedError(
            f"backend smddp does not support {operation} on sparse tensors (layout {tensor.layout}); "
            "call to_dense() first"
        )
    if not tensor.is_cpu:
        raise NotImplementedError(
            f"backend smddp does not support {operation} on device {tensor.device}; it serves cpu and cuda"
        )


def dense(tensor: torch.Tensor, operation: str) -> torch.Tensor:
    """Return `tensor` if its numbers lie in one piece of host memory, else a contiguous copy of the same shape.

    Raises: as `check_memory`.
    """
    is_view_of_others = tensor.is_neg() or tensor.is_conj()
    if tensor.layout is torch.strided and tensor.is_cpu and tensor.is_contiguous() and not is_view_of_others:
        return tensor
    check_memory(tensor, operation)
    return tensor.resolve_conj().resolve_neg().contiguous()


def reduced(tensor: torch.Tensor, op: int, operation: str) -> tuple[int, int]:
    """Return element count and type of a dense tensor as the core reduces it; complex numbers are pairs.

    Args:
        tensor: of any shape.
        op: number of the reduction in the core.
        operation: for the error's text.
    Raises:
        NotImplementedError: no reduction is defined on its type.
    """
    dtype = DTYPES.get(tensor.dtype)
    if dtype is not None:
        return tensor.numel(), dtype
    if tensor.dtype.is_complex and op in _LINEAR:
        part = DTYPES.get(tensor.real.dtype)
        if part is not None:
            return 2 * tensor.numel(), part
    raise NotImplementedError(
        f"backend smddp does not support {operation} with {CoreOp(op).name} on {tensor.dtype}; convert the tensor first"
    )


def moved(tensor: torch.Tensor) -> tuple[int, int]:
    """Return element count and type of a dense tensor of any shape as the core moves it.

    A type that the core does not know counts as bytes.
    """
    dtype = DTYPES.get(tensor.dtype)
    if dtype is not None:
        return tensor.numel(), dtype
    return tensor.nbytes, BYTES


def single(tensors: Sequence[torch.Tensor], operation: str) -> torch.Tensor:
    """Return the one tensor of a list.

    Raises:
        ValueError: the list is empty, or has several tensors, which once meant several devices a process.
    """
    if len(tensors) != 1:
        raise ValueError(f"backend smddp: {operation} takes one tensor per rank, got {len(tensors)}")
    return tensors[0]


def check_equal(tensors: Sequence[torch.Tensor], like: torch.Tensor, operation: str) -> None:
    """Raise unless every tensor has the type and element count of `like`.

    Args:
        tensors: of any shape.
        like: of any shape; its type and element count are compared.
        operation: for the error's text.
    Raises:
        TypeError: other types. ValueError: other counts.
    """
    dtype, count = like.dtype, like.numel()
    for index, tensor in enumerate(tensors):
        if tensor.dtype is not dtype:
            raise TypeError(f"backend smddp: {operation}: tensor {index} has type {tensor.dtype}, expected {dtype}")
        if tensor.numel() != count:
            raise ValueError(
                f"backend smddp: {operation}: tensor {index} has {tensor.numel()} elements, expected {count}"
            )
