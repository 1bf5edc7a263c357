"""A trial of tensors saved in a folder or in S3."""

from clary.train.debugger.reading.trial import Trial

__all__ = ["Trial"]
