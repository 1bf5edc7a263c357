"""Functions that SMP puts in the place of torch's own."""

from . import checkpoint

__all__ = ["checkpoint"]
