"""`load`."""

from clary.train.parallel.fsdp.checkpoint.loading import load

__all__ = ["load"]
