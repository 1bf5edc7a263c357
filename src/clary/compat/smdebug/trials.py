"""What a training has saved."""

from clary.train.debugger.trial import Trial, create_trial

__all__ = ["Trial", "create_trial"]
