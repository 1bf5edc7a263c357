"""Keys that mark the kind of a checkpoint."""

from clary.train.parallel.fsdp.checkpoint.folders import SMP_IS_LOAD_INFO_KEY, SMP_IS_PARTIAL_KEY

__all__ = ["SMP_IS_LOAD_INFO_KEY", "SMP_IS_PARTIAL_KEY"]
