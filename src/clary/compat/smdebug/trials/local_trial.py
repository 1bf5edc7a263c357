"""What a training has saved in a folder."""

from clary.train.debugger.trial_places import LocalTrial

__all__ = ["LocalTrial"]
