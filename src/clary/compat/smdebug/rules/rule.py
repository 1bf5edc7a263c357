"""Base of rules."""

from clary.train.debugger.rule import Rule

__all__ = ["Rule"]
