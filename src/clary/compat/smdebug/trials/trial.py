"""What a training has saved, wherever it lies."""

from clary.train.debugger.trial import Trial

__all__ = ["Trial"]
