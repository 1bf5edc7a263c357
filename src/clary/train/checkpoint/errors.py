"""The error of checkpoints."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint was not made, or cannot be used; the text names rank, step and path."""
