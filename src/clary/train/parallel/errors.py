"""Errors between the ranks of a parallel program."""

from __future__ import annotations


class ParallelError(RuntimeError):
    """A joint operation of ranks failed; the text names the rank and the operation that it ran or waited for."""


class RemoteFailure(ParallelError):
    """A module failed on the rank that holds it; the text includes that rank's error."""


class RankLost(ParallelError):
    """Another rank that this rank needs has ended, or does not answer."""


class CheckpointError(ParallelError):
    """A checkpoint was not made, or cannot be used; the text names the reason."""
