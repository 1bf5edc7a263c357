"""What SMP puts in the place of torch's own functions."""

from . import checkpoint

__all__ = ["checkpoint"]
