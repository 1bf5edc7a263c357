"""The error of checkpoints."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint that was not made, or cannot be used as it is; the text names rank, step and path."""
