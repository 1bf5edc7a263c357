"""What can go wrong between the ranks of a parallel program."""

from __future__ import annotations


class ParallelError(RuntimeError):
    """Something that ranks do together did not come about; the text says which rank did or waited for what."""


class RemoteFailure(ParallelError):
    """A module failed on the rank that holds it; the text has that rank's words."""


class RankLost(ParallelError):
    """Another rank has ended, or does not answer, while this one needs it."""


class CheckpointError(ParallelError):
    """A checkpoint that did not come about, or cannot be used as it is; the text says what is wrong with it."""
