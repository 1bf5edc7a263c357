"""The hook, under the name of smdebug's own module."""

from clary.train.debugger.hook import Hook

__all__ = ["Hook"]
