"""`torch.sagemaker.moe.moe_layer.MoELayer`, the class that wrapping and checkpointing policies name."""

from clary.train.parallel.fsdp.experts.layer import MoELayer

__all__ = ["MoELayer"]
