"""Types in which gradients are sent: their own type, or half precision."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class NoneCompressor:
    """Passes tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor, and None as the context for `decompress`."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor."""
        return tensor


class FP16Compressor:
    """Sends floating tensors as float16; sums are rounded to float16, too."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor, in float16 if it is floating, and its original type."""
        if not tensor.dtype.is_floating:
            return tensor, tensor.dtype
        return tf.cast(tensor, tf.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in the type `ctx` from `compress`."""
        return tensor if tensor.dtype == ctx else tf.cast(tensor, ctx)


class Compression:
    """Compressions by the names that scripts write."""

    none = NoneCompressor
    fp16 = FP16Compressor
