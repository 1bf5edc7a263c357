"""Arrays of MXNet as the engine's input: contiguous host memory, as NumPy arrays without a copy.

MXNet computes in threads of its own, and an array may not be computed yet when Python holds it. So a view is made only
after all queued work has ended; work that is queued later reads the data that the engine has written.
Source: c_api.h of MXNet 1.9.1, `MXNDArrayGetData` and `MXNDArrayWaitToWrite`.
"""

from __future__ import annotations

import ctypes

import mxnet as mx
import numpy as np
from horovod.common.arrays import DTYPES
from mxnet.base import _LIB, check_call


def view(tensor: mx.nd.NDArray) -> np.ndarray:
    """Return the array's own memory, which may be written; for an array on a GPU, a copy on the host.

    Args:
        tensor: of any shape; the caller keeps it alive while the result is used.

    Raises: ValueError for a sparse array or an unsupported element type; MXNetError if work that was queued before
    failed.
    """
    if tensor.stype != "default":
        raise ValueError(f"only dense arrays can be sent; got storage type {tensor.stype}: use tostype('default')")
    dtype = np.dtype(tensor.dtype)
    if dtype.name not in DTYPES:
        raise ValueError(f"arrays of type {dtype.name} cannot be sent: cast to one of {', '.join(DTYPES)}")
    tensor.wait_to_read()
    if place_of(tensor) == "gpu":
        copy: np.ndarray = tensor.asnumpy()
        return copy
    check_call(_LIB.MXNDArrayWaitToWrite(tensor.handle))
    num_bytes = int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize
    if not num_bytes:
        return np.empty(tensor.shape, dtype)
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(tensor.handle, ctypes.byref(address)))
    memory = (ctypes.c_byte * num_bytes).from_address(address.value or 0)
    found: np.ndarray = np.frombuffer(memory, dtype).reshape(tensor.shape)
    return found


def place_of(tensor: mx.nd.NDArray) -> str:
    """Return "cpu" or "gpu"."""
    return "gpu" if tensor.context.device_type == "gpu" else "cpu"


def new_like(array: np.ndarray, tensor: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a new array of MXNet with the values of a NumPy array, on the device of `tensor`."""
    return mx.nd.array(array, ctx=tensor.context, dtype=tensor.dtype)
