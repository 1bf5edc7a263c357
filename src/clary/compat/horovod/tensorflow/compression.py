"""Compression of gradients on their way."""

from clary.train.collective.adapters.tensorflow.compression import Compression, FP16Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor(NoneCompressor):
    """One way to make a tensor smaller; programs may write their own."""
