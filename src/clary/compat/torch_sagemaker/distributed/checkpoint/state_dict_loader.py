"""`load`."""

from clary.train.parallel.fsdp.loading import load

__all__ = ["load"]
