"""Choice of the numbers that stand for a tensor."""

from clary.train.debugger.reduction_config import ReductionConfig

__all__ = ["ReductionConfig"]
