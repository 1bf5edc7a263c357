"""`torch.sagemaker.utils.module_utils`."""

from clary.train.parallel.fsdp.modules import empty_module_params, move_buffers_to_device

__all__ = ["empty_module_params", "move_buffers_to_device"]
