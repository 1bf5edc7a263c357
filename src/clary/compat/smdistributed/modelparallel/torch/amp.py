"""`smp.amp`."""

from clary.train.parallel.amp import GradScaler

__all__ = ["GradScaler"]
