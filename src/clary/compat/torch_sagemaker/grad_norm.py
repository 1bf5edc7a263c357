"""`torch.sagemaker.grad_norm.clip_grad_norm_`."""

from clary.train.parallel.fsdp.training import clip_grad_norm_

__all__ = ["clip_grad_norm_"]
