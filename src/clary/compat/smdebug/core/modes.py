"""Phases of training."""

from clary.train.debugger.modes import ModeKeys

__all__ = ["ModeKeys"]
