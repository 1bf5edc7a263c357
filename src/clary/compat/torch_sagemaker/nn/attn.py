"""`FlashSelfAttention` and `FlashGroupedQueryAttention`."""

from clary.train.parallel.fsdp.layers.attention import FlashGroupedQueryAttention, FlashSelfAttention

__all__ = ["FlashGroupedQueryAttention", "FlashSelfAttention"]
