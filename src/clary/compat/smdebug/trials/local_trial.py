"""What a training has saved in a folder."""

from clary.train.debugger.trial import LocalTrial

__all__ = ["LocalTrial"]
