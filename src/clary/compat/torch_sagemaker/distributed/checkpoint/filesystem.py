"""Readers and writers of checkpoints, in folders and in S3."""

from clary.train.parallel.fsdp.checkpoint.storage import (
    DistributedFileSystemReader,
    DistributedFileSystemWriter,
    path_to_file_system,
)

__all__ = ["DistributedFileSystemReader", "DistributedFileSystemWriter", "path_to_file_system"]
