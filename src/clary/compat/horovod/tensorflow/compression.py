"""Compression of gradients for sending."""

from clary.train.collective.adapters.tensorflow.compression import Compression, FP16Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor(NoneCompressor):
    """Base class of compressors of tensors; programs may write their own."""
