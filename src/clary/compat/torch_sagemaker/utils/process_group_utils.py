"""`torch.sagemaker.utils.process_group_utils.get_global_ranks`."""

from clary.train.parallel.fsdp.modules import get_global_ranks

__all__ = ["get_global_ranks"]
