"""A trial of tensors saved in S3."""

from clary.train.debugger.reading.trial_places import S3Trial

__all__ = ["S3Trial"]
