"""Errors with the names by which AWS's launcher recognises failures of this library in the output of programs."""

from clary.train.parallel.errors import CheckpointError, ParallelError, RankLost, RemoteFailure

__all__ = ["CheckpointError", "ParallelError", "RankLost", "RemoteFailure"]
