"""Compression of gradients for sending."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np


class Compressor:
    """Base class of compressors of arrays; programs may write their own."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        """Return the array to send, of the same shape, and the `ctx` of `decompress`.

        Raises: NotImplementedError unless overridden.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        """Return an array of the type before compression.

        Args:
            tensor: the received array.
            ctx: second result of `compress`.

        Raises: NotImplementedError unless overridden.
        """
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves arrays as they are."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        """Return the array itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        """Return the array itself. Args: as `Compressor.decompress`."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point arrays as float16, and arrays of other types unchanged."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        """Return the array as float16, and its original type."""
        is_floating = np.dtype(tensor.dtype).kind == "f"
        return (tensor.astype("float16", copy=False) if is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        """Return the array in its original type. Args: as `Compressor.decompress`."""
        return tensor.astype(ctx, copy=False)


class Compression:
    """The compressors by name."""

    none = NoneCompressor
    fp16 = FP16Compressor
