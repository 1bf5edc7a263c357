"""The wrapper of models of SMDDP 1.3 and before."""

from .distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
