"""Functions by which SMP replaces torch's own."""

from . import checkpoint

__all__ = ["checkpoint"]
