"""Errors between the ranks of a parallel program."""

from __future__ import annotations


class ParallelError(RuntimeError):
    """A joint operation of ranks failed; the text names the rank and the operation it ran or waited for."""


class RemoteFailure(ParallelError):
    """A module failed on the rank that holds it; the text has that rank's error."""


class RankLost(ParallelError):
    """Another rank has ended, or does not answer, while this one needs it."""


class CheckpointError(ParallelError):
    """A checkpoint that was not made or cannot be used as it is; the text says why."""
