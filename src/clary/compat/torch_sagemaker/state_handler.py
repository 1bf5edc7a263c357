"""`torch.sagemaker.state_handler.state`."""

from clary.train.parallel.fsdp.session import state

__all__ = ["state"]
