"""Compression of gradients on their way."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """One way to make a tensor smaller; programs may write their own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor that travels, of the same shape, and the value that `decompress` needs.

        Raises: NotImplementedError here; subclasses do it.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return a tensor of the type before.

        Args:
            tensor: as it arrived, of any shape; the result has the same shape.
            ctx: of `compress`.

        Raises: NotImplementedError here; subclasses do it.
        """
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor itself, of any shape."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor itself, of any shape. Args: as `Compressor.decompress`."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating tensors in 16 bits; other types travel as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor as float16 in the same shape, and its type before."""
        return (tensor.half() if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor in its type before, in the same shape. Args: as `Compressor.decompress`."""
        return tensor.to(ctx)


class Compression:
    """The compressors by name."""

    none = NoneCompressor
    fp16 = FP16Compressor
