"""Errors with the names by which AWS's launcher recognises failures of this library in the output of programs."""

from clary.train.parallel.errors import CheckpointError, ParallelError, RankLost
from clary.train.tf_parallel.errors import GraphBuildError

__all__ = ["CheckpointError", "GraphBuildError", "ParallelError", "RankLost"]
