"""A trial of tensors saved in a folder."""

from clary.train.debugger.reading.trial_places import LocalTrial

__all__ = ["LocalTrial"]
