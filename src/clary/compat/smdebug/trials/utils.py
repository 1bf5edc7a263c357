"""Opens the tensors that a training has saved."""

from clary.train.debugger.reading.trial_places import create_trial

__all__ = ["create_trial"]
