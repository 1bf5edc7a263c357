"""Checkpoint files in S3, for the file system writers and readers of torch.

A file becomes an object only when its context ends without an error, so an object is either complete or absent. Reads
fetch ranges of one version of the object. boto3 is imported at the first access to S3: jobs that save in folders do not
need it.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from clary.train.parallel.fsdp.checkpoint.s3_errors import is_absent, is_changed, retry_with_jitter

PART_BYTES = 64 << 20  # size of a part of a multipart upload, as in the original
_READ_BYTES = 8 << 20  # size of a reader's buffer
_REGION = re.compile(r"s3[.-](?:dualstack\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.")

_making = threading.Lock()  # threads may share a client, but must not create clients concurrently: they share a session


def is_s3_uri(path: Any) -> bool:
    """Return whether a path lies in S3."""
    return isinstance(path, str) and path.startswith("s3://")


def parse_s3_uri(path: str) -> tuple[str, str]:
    """Return the bucket and the key, without slashes at its end.

    Raises: ValueError if the path is not in S3.
    """
    bucket, _, key = path.removeprefix("s3://").partition("/")
    if not is_s3_uri(path) or not bucket:
        raise ValueError(f"{path!r} is no path in S3; expected s3://bucket/prefix")
    return bucket, key.rstrip("/")


def format_s3_path(bucket: str, key: str) -> str:
    """Return the path of a key."""
    return f"s3://{bucket}/{key.rstrip('/')}"


def get_s3_region_from_uri(path: str, client: Any = None) -> str:
    """Return the region of a path's bucket: from the path's host name, or else by a request to S3.

    Raises: ImportError without boto3; botocore's errors.
    """
    named = _REGION.search(path)
    if named is not None:
        return named[1]
    answer = (client or _client(None, None)).get_bucket_location(Bucket=parse_s3_uri(path)[0])
    return answer.get("LocationConstraint") or "us-east-1"  # S3 names no location for its oldest region


class S3FileSystem:
    """A file system in S3 for torch's writers and readers; paths are text. Thread-safe.

    Args:
        region: region of the buckets; None is boto3's default from environment and configuration.
        config: a botocore Config.
        client: an S3 client; None creates one with boto3.
    """

    def __init__(self, region: str | None = None, config: Any = None, client: Any = None) -> None:
        self._region, self._config, self._made = region, config, client
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def create_stream(self, path: str, mode: str) -> Iterator[Any]:
        """Open a file to write, `wb`, or to read, `rb`. Raises: ValueError."""
        bucket, key = parse_s3_uri(path)
        if mode == "rb":
            yield io.BufferedReader(_Object(self._client, path), _READ_BYTES)
        elif mode == "wb":
            with tempfile.TemporaryFile(prefix="clary-s3-") as file:
                yield _Open(file)
                self._upload(file, bucket, key)
        else:
            raise ValueError(f"{path}: mode is {mode!r}; expected rb or wb")

    def concat_path(self, path: str, suffix: str) -> str:
        """Append a suffix to a path."""
        return f"{path.rstrip('/')}/{suffix}"

    def init_path(self, path: Any) -> str:
        """Return the path without a slash at its end.

        Raises: ValueError if it is not in S3.
        """
        return format_s3_path(*parse_s3_uri(str(path)))

    def rename(self, path: str, new_path: str) -> None:
        """Copy an object to a new path and delete the old one."""
        bucket, key = parse_s3_uri(path)
        new_bucket, new_key = parse_s3_uri(new_path)
        source = {"Bucket": bucket, "Key": key}
        retry_with_jitter(lambda: self._client.copy_object(Bucket=new_bucket, Key=new_key, CopySource=source))
        self.rm_file(path)

    def mkdir(self, path: str) -> None:
        """Do nothing: S3 has no folders."""

    def exists(self, path: str) -> bool:
        """Return whether an object has this key."""
        bucket, key = parse_s3_uri(path)
        try:
            retry_with_jitter(lambda: self._client.head_object(Bucket=bucket, Key=key))
        except Exception as error:
            if is_absent(error):
                return False
            raise
        return True

    def rm_file(self, path: str) -> None:
        """Delete an object."""
        bucket, key = parse_s3_uri(path)
        retry_with_jitter(lambda: self._client.delete_object(Bucket=bucket, Key=key))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Return whether a path lies in S3."""
        return is_s3_uri(checkpoint_id)

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = _client(self._region, self._config)
            return self._made

    def _upload(self, file: Any, bucket: str, key: str) -> None:
        size = file.tell()

        def upload() -> None:
            file.seek(0)
            if size <= PART_BYTES:
                self._client.put_object(Bucket=bucket, Key=key, Body=file.read())
                return
            upload_id = self._client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
            place = {"Bucket": bucket, "Key": key, "UploadId": upload_id}
            try:
                parts: list[dict[str, Any]] = []
                while part := file.read(PART_BYTES):
                    number = len(parts) + 1
                    tag = self._client.upload_part(**place, PartNumber=number, Body=part)["ETag"]
                    parts.append({"PartNumber": number, "ETag": tag})
                self._client.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})
            except BaseException:
                # S3 charges for the parts of an incomplete upload until it is aborted.
                with contextlib.suppress(Exception):
                    self._client.abort_multipart_upload(**place)
                raise

        retry_with_jitter(upload)


class _Open:
    """A file whose `close` only flushes, since torch's writers close their file before the context ends."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        self._file.flush()


class _Object(io.RawIOBase):
    """An object read by range requests.

    Raises: OSError from a read if the object was overwritten after the open.
    """

    def __init__(self, client: Any, path: str) -> None:
        bucket, key = parse_s3_uri(path)
        self._client, self._path, self._place, self._at = client, path, {"Bucket": bucket, "Key": key}, 0
        facts = retry_with_jitter(lambda: client.head_object(**self._place))
        self._size = int(facts["ContentLength"])
        self._place["IfMatch"] = facts["ETag"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        # The inherited method would request 8 KiB at a time.
        return b"".join(iter(lambda: self._read(PART_BYTES), b""))

    def _read(self, count: int) -> bytes:
        end = min(self._at + count, self._size)
        if end <= self._at:
            return b""
        span = f"bytes={self._at}-{end - 1}"
        try:
            data: bytes = retry_with_jitter(lambda: self._client.get_object(**self._place, Range=span)["Body"].read())
        except Exception as error:
            if is_changed(error):
                raise OSError(f"{self._path} was written anew while it was read: load it again") from error
            raise
        self._at += len(data)
        return data


def _client(region: str | None, config: Any) -> Any:
    try:
        import boto3
    except ImportError:
        raise ImportError(
            "checkpoints in S3 need boto3, which this environment does not have: add boto3 to the job's "
            "requirements.txt, or save to a folder such as /opt/ml/checkpoints"
        ) from None
    with _making:
        return boto3.client("s3", region_name=region, config=config)
