"""Memory of eager tensors as NumPy arrays, and of NumPy arrays as tensors.

Tensor and array share the memory, for bool, for every integer and floating type that DLPack supports, and for bfloat16
(TensorFlow 2.21). Other versions of TensorFlow may make a copy, which is also correct.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from clary.train.collective.adapters.tensorflow.layout import ALIGNMENT

_BFLOAT16 = "bfloat16"


def array_of(tensor: Any) -> np.ndarray:
    """Return the memory of an eager tensor as a read-only array of its shape and type.

    Raises: TypeError for a tensor of strings, resources or variants.
    """
    array = np.asarray(tensor, order="C")
    if array.dtype.kind in "OSU":
        raise TypeError(f"a tensor of type {tensor.dtype.name} cannot be exchanged between ranks: pass one of numbers")
    return array


def tensor_of(array: np.ndarray) -> Any:
    """Return an eager tensor that uses the memory of an array, which must not be written from now on.

    A read-only, unaligned or complex array is copied: TensorFlow would abort the process for memory that does not begin
    at a multiple of 64 bytes.
    """
    if array.dtype.name == _BFLOAT16:  # not supported by NumPy's DLPack
        return tf.bitcast(tensor_of(array.view(np.uint16)), tf.bfloat16)
    is_aligned = array.__array_interface__["data"][0] % ALIGNMENT == 0
    if array.dtype.kind not in "fiub" or not array.flags.writeable or not is_aligned:  # DLPack refuses read-only
        return tf.convert_to_tensor(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
