"""`torch.sagemaker.delayed_param.DelayedParamIniter`."""

from clary.train.parallel.fsdp.delayed import DelayedParamIniter

__all__ = ["DelayedParamIniter"]
