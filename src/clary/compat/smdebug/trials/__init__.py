"""Trials: the tensors that a training has saved."""

from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.reading.trial_places import LocalTrial, S3Trial, create_trial

__all__ = ["LocalTrial", "S3Trial", "Trial", "create_trial"]
