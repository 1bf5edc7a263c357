"""What a training has saved, wherever it lies."""

from clary.train.debugger.reading.trial import Trial

__all__ = ["Trial"]
