"""`torch.sagemaker.moe.moe_config.MoEConfig`."""

from clary.train.parallel.fsdp.experts.configuration import MoEConfig

__all__ = ["MoEConfig"]
