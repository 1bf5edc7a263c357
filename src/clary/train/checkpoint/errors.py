"""The error of checkpoints."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint that did not come about, or cannot be used as it is; the text names rank, step and path."""
