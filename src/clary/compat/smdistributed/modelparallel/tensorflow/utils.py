"""`smdistributed.modelparallel.tensorflow.utils`: checkpoint transfer between ranks, and `GraphBuildError`.

Source: aws/deep-learning-containers `test/dlc_tests` and the library's release notes, which call these functions.
"""

from __future__ import annotations

from clary.train.tf_parallel import checkpoint_files, session
from clary.train.tf_parallel.errors import GraphBuildError

__all__ = ["GraphBuildError", "receive_checkpoint_files", "send_checkpoint_files"]


def send_checkpoint_files(directory: str, dest: int) -> None:
    """Send all files below a directory to another rank, which calls `receive_checkpoint_files`.

    Args:
        dest: rank in the world.
    """
    checkpoint_files.send_checkpoint_files(session.current().links, directory, dest)


def receive_checkpoint_files(directory: str, src: int) -> None:
    """Write another rank's files below a directory, which is created; existing files of the same names are replaced.

    Args:
        src: rank in the world.

    Raises: CheckpointError for a file whose path leaves the directory.
    """
    checkpoint_files.receive_checkpoint_files(session.current().links, directory, src)
