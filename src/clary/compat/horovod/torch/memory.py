"""Tensors as the engine's input: contiguous host memory.

The thread that runs an operation copies a GPU's tensor to pinned memory before the operation, and back after it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from clary.train._native.interface import Dtype
from clary.train.collective.buffers import Buffer

DTYPES = {
    torch.float32: Dtype.FLOAT32,
    torch.float64: Dtype.FLOAT64,
    torch.float16: Dtype.FLOAT16,
    torch.bfloat16: Dtype.BFLOAT16,
    torch.int8: Dtype.INT8,
    torch.int16: Dtype.INT16,
    torch.int32: Dtype.INT32,
    torch.int64: Dtype.INT64,
    torch.uint8: Dtype.UINT8,
    torch.bool: Dtype.BOOL,
}


def check(tensor: torch.Tensor) -> Dtype:
    """Return the type of a tensor's elements; the tensor may have any shape.

    Raises: ValueError for an unsupported element type, or memory that is not contiguous.
    """
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise ValueError(f"Tensor type {tensor.type()} is not supported.")
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise ValueError("Tensor is required to be contiguous.")
    return dtype


def place_of(tensor: torch.Tensor) -> str:
    """Return "cpu" or "gpu", the device of a tensor of any shape."""
    return "cpu" if tensor.device.type == "cpu" else "gpu"


def buffer(tensor: torch.Tensor) -> Buffer:
    """Describe the memory of a contiguous tensor of the host, of any shape."""
    return Buffer(tensor.data_ptr(), tensor.numel(), DTYPES[tensor.dtype], True, tensor)


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return pinned memory of the shape and type of a tensor on a GPU."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=torch.cuda.is_available())


def copy_down(tensor: torch.Tensor, host: torch.Tensor) -> Callable[[], None]:
    """Return a function that copies a GPU's tensor to the host, after the work that was queued before this call.

    Args:
        tensor: a tensor on the GPU, of any shape.
        host: memory of the same shape and type.
    """
    ready = torch.cuda.Event()
    ready.record(torch.cuda.current_stream(tensor.device))

    def copy() -> None:
        with torch.no_grad():
            stream = torch.cuda.Stream(tensor.device)
            stream.wait_event(ready)
            with torch.cuda.stream(stream):
                host.copy_(tensor, non_blocking=True)
            stream.synchronize()

    return copy


def copy_up(host: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a result to the GPU, and wait for the copy.

    Args:
        host: the result, of any shape.
        tensor: a tensor on the GPU, of the same shape and type.
    """
    with torch.no_grad():
        stream = torch.cuda.Stream(tensor.device)
        with torch.cuda.stream(stream):
            tensor.copy_(host, non_blocking=True)
        stream.synchronize()
