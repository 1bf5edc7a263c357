"""Writers and readers of checkpoints in folders and under S3 prefixes, in torch.distributed.checkpoint's format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem

from clary.train.parallel.fsdp.checkpoint.s3 import S3FileSystem, is_s3_uri
from clary.train.parallel.fsdp.checkpoint.slice_folders import has_sources

Hook = Callable[[], None]


class DistributedFileSystemWriter(FileSystemWriter):
    """Writes one rank's part; removes the folder's metadata before any data is overwritten.

    Args:
        path: a folder, or s3://bucket/prefix.
        pre_write_hooks: called without arguments before this rank's data is written, on the thread that writes.
        post_write_hooks: called on the same thread after a write without an error.
    """

    def __init__(
        self,
        path: Any,
        *args: Any,
        pre_write_hooks: Iterable[Hook] = (),
        post_write_hooks: Iterable[Hook] = (),
        s3_region: str | None = None,
        s3client_config: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__("." if is_s3_uri(path) else path, *args, **kwargs)
        self.fs = path_to_file_system(path, s3_region=s3_region, s3client_config=s3client_config)
        self.path = self.fs.init_path(path)
        self._pre_write_hooks, self._post_write_hooks = list(pre_write_hooks), list(post_write_hooks)

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Remove the folder's metadata; called on the coordinator alone, before any rank writes.

        Raises: ValueError if the folder holds another slice; that slice stays.
        """
        planned: list[Any] = super().prepare_global_plan(plans)
        metadata = self.fs.concat_path(self.path, ".metadata")
        if self.fs.exists(metadata):
            self.fs.rm_file(metadata)
        return planned

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write this rank's data between the hooks."""
        for hook in self._pre_write_hooks:
            hook()
        future = super().write_data(plan, planner)
        future.wait()
        for hook in self._post_write_hooks:
            hook()
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Return whether this writer can write to a path."""
        return is_s3_uri(checkpoint_id) or bool(FileSystem.validate_checkpoint_id(checkpoint_id))


class DistributedFileSystemReader(FileSystemReader):
    """Reads the checkpoints that `DistributedFileSystemWriter` wrote.

    Args:
        path: a folder, or s3://bucket/prefix.
    """

    def __init__(
        self, path: Any, *args: Any, s3_region: str | None = None, s3client_config: Any = None, **kwargs: Any
    ) -> None:
        super().__init__("." if is_s3_uri(path) else path, *args, **kwargs)
        self.fs = path_to_file_system(path, s3_region=s3_region, s3client_config=s3client_config)
        self.path = self.fs.init_path(path)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """Read the folder's metadata.

        Raises: FileNotFoundError if the folder has no finished checkpoint, and slices in other folders do not hold its
            data.
        """
        metadata = self.fs.concat_path(self.path, ".metadata")
        if not self.fs.exists(metadata) and not has_sources(self):
            raise FileNotFoundError(
                f"{self.path} has no .metadata: no distributed checkpoint is there, or saving it was not "
                "finished. Load another checkpoint; after async_save, maybe_finalize_async_calls turns the "
                "save into a checkpoint"
            )
        return super().read_metadata(*args, **kwargs)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Return whether this reader can read a path."""
        return is_s3_uri(checkpoint_id) or bool(FileSystem.validate_checkpoint_id(checkpoint_id))


def path_to_file_system(path: Any, s3_region: str | None = None, s3client_config: Any = None) -> Any:
    """Return the file system of a path: local or S3.

    Args:
        path: a folder, or s3://bucket/prefix.
        s3_region: region of the bucket; None is boto3's default from environment and configuration.
        s3client_config: a botocore Config, or None.

    Raises: ValueError for an S3 path that lacks a slash, as in a `Path`.
    """
    if not is_s3_uri(path) and str(path).startswith("s3:/"):
        raise ValueError(f"the path {path!r} has lost a slash: give s3://bucket/prefix as text")
    return S3FileSystem(s3_region, s3client_config) if is_s3_uri(path) else FileSystem()


def make_writer(path: Any, *, s3_region: str | None, s3client_config: Any, num_threads: int) -> Any:
    """Return a writer for a path.

    Args:
        path: a folder, or s3://bucket/prefix.
        s3_region: region of the bucket; None is boto3's default from environment and configuration.
        s3client_config: a botocore Config, or None.
        num_threads: number of threads that write this rank's data.

    Raises: ValueError if the path is empty, not a path, or an S3 path that lacks a slash, as in a `Path`.
    """
    return DistributedFileSystemWriter(
        _checked(path), s3_region=s3_region, s3client_config=s3client_config, thread_count=num_threads
    )


def make_reader(path: Any, *, s3_region: str | None, s3client_config: Any) -> Any:
    """Return a reader for a path.

    Args:
        path: a folder, or s3://bucket/prefix.
        s3_region: region of the bucket; None is boto3's default from environment and configuration.
        s3client_config: a botocore Config, or None.

    Raises: ValueError if the path is empty, not a path, or an S3 path that lacks a slash, as in a `Path`.
    """
    return DistributedFileSystemReader(_checked(path), s3_region=s3_region, s3client_config=s3client_config)


def _checked(path: Any) -> Any:
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ValueError(
            f"checkpoint_id is {path!r}; expected a folder or s3://bucket/prefix, or a storage writer or reader"
        )
    return path
