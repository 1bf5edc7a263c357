"""`torch.sagemaker.state_handler.state`."""

from clary.train.parallel.fsdp.state import state

__all__ = ["state"]
