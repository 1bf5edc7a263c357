"""`torch.sagemaker.logger.get_logger`."""

from clary.train.parallel.fsdp.logs import get_logger

__all__ = ["get_logger"]
