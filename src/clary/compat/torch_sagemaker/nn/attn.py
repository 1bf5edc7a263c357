"""`FlashSelfAttention` and `FlashGroupedQueryAttention`."""

from clary.train.parallel.tensor.flash_layers import FlashGroupedQueryAttention, FlashSelfAttention

__all__ = ["FlashGroupedQueryAttention", "FlashSelfAttention"]
