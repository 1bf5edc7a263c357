"""`torch.sagemaker.checkpoint.utils.limit_num_subdirs`."""

from clary.train.parallel.fsdp.checkpoint.folders import SORT_BY_LAST_INT, limit_num_subdirs

__all__ = ["SORT_BY_LAST_INT", "limit_num_subdirs"]
