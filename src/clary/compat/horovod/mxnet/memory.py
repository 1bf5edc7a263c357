"""Arrays of MXNet as the engine takes them: contiguous memory of the host, seen through NumPy without a copy.

MXNet computes in threads of its own, and an array may still be waited for when Python holds it. So a view is made only
when everything that was queued before has ended; what is queued later sees what the engine has written.
Source: c_api.h of MXNet 1.9.1, `MXNDArrayGetData` and `MXNDArrayWaitToWrite`.
"""

from __future__ import annotations

import ctypes

import mxnet as mx
import numpy as np
from horovod.common.arrays import DTYPES
from mxnet.base import _LIB, check_call


def view(tensor: mx.nd.NDArray) -> np.ndarray:
    """Return the array's own memory, which may be written; for one on a GPU, a copy on the host.

    Args:
        tensor: of any shape; it must live as long as the result is used.

    Raises: ValueError for a sparse array, and for a type that cannot travel; MXNetError of what was queued before.
    """
    if tensor.stype != "default":
        raise ValueError(f"only dense arrays travel; got storage type {tensor.stype}: use tostype('default')")
    dtype = np.dtype(tensor.dtype)
    if dtype.name not in DTYPES:
        raise ValueError(f"arrays of type {dtype.name} cannot travel: cast to one of {', '.join(DTYPES)}")
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
    """Return a new array of MXNet with the values of one of NumPy, where `tensor` lies."""
    return mx.nd.array(array, ctx=tensor.context, dtype=tensor.dtype)
