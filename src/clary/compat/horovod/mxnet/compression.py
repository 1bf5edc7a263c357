"""Compression of gradients on their way."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np


class Compressor:
    """One way to make an array smaller; programs may write their own."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        """Return an array of the same shape that travels, and the `ctx` of `decompress`.

        Raises: NotImplementedError, here.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        """Return an array of the type before.

        Args:
            tensor: as it arrived.
            ctx: of `compress`.

        Raises: NotImplementedError, here.
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
    """Sends floating arrays in 16 bits; other types travel as they are."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        """Return the array as float16, and its type before."""
        is_floating = np.dtype(tensor.dtype).kind == "f"
        return (tensor.astype("float16", copy=False) if is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        """Return the array in its type before. Args: as `Compressor.decompress`."""
        return tensor.astype(ctx, copy=False)


class Compression:
    """The compressors by name."""

    none = NoneCompressor
    fp16 = FP16Compressor
