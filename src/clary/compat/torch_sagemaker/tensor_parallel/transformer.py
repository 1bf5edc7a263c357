"""Classes that wrapping and checkpointing policies name."""

from clary.train.parallel.fsdp.layers.classes import TETransformerLayer, TransformerLayer, TransformerLMHead

__all__ = ["TETransformerLayer", "TransformerLMHead", "TransformerLayer"]
