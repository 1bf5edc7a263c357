"""Compression of gradients for sending."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Base class of compressors of tensors; programs may write their own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor to send, of the same shape, and the `ctx` of `decompress`.

        Raises: NotImplementedError unless overridden.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return a tensor of the type before compression.

        Args:
            tensor: the received tensor, of any shape; the result has the same shape.
            ctx: second result of `compress`.

        Raises: NotImplementedError unless overridden.
        """
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors unchanged."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor itself, of any shape."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor itself, of any shape. Args: as `Compressor.decompress`."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16, and tensors of other types unchanged."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor as float16 in the same shape, and its original type."""
        return (tensor.half() if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor in its original type, in the same shape. Args: as `Compressor.decompress`."""
        return tensor.to(ctx)


class Compression:
    """The compressors by name."""

    none = NoneCompressor
    fp16 = FP16Compressor
