"""`smp.model`."""

from clary.train.parallel.model import DistributedModel

__all__ = ["DistributedModel"]
