"""Files of a training below a prefix of S3, in the layout of the local folder.

A listing of a folder starts at the last step that all workers have passed. Objects are read in blocks, which are cached
on this machine's disk up to a bound. An object is complete or does not exist. An object that is replaced during a read
does not match its checksums, and is read again when its new version is listed.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from clary.train.debugger.errors import ConfigurationError, TensorFileError
from clary.train.debugger.reading.object_blocks import ObjectBlocks

if TYPE_CHECKING:
    from clary.train.debugger.reading.s3_access import Bucket

SCHEME = "s3://"
INTERVAL_S = 2.0  # seconds between looks, each of which makes five requests or more
BLOCK_BYTES = 256 * 1024  # large enough that one request returns a file's index and first values
CACHE_BYTES = 1024**3
THREADS = 16  # threads that fetch at the same time


class S3Files:
    """Files below a prefix.

    Args:
        prefix: without slashes at its ends; empty for the whole bucket.
        cache_bytes: maximum total size of the blocks on this machine's disk, in bytes.
        cache_place: parent of the blocks' folder; None for the temporary directory.
        interval_s: seconds between two looks for new files.
    """

    def __init__(
        self,
        bucket: Bucket,
        prefix: str,
        *,
        cache_bytes: int = CACHE_BYTES,
        cache_place: Path | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.interval_s = interval_s
        self._bucket, self._base = bucket, f"{prefix}/" if prefix else ""
        self._facts: dict[str, tuple[int, str]] = {}  # size and ETag of the listed objects
        self._blocks = ObjectBlocks(cache_bytes, cache_place)

    def __str__(self) -> str:
        return f"{SCHEME}{self._bucket.name}/{self._base}"

    def listing(self, folder: str, after: str = "") -> dict[str, str]:
        """Return the names in a folder from `after` on, with marks that change with the objects. Raises: StoreError."""
        begin = f"{folder}/" if folder else ""
        prefix = self._base + begin
        found = self._bucket.list(prefix, prefix + after if after else "")
        marks: dict[str, str] = {}
        for item in found.objects:
            name = item.key.removeprefix(prefix)
            if name and name >= after:
                self._facts[begin + name] = (item.size_bytes, item.etag)
                marks[name] = f"{item.etag} {item.size_bytes}"
        marks |= {name.removeprefix(prefix).rstrip("/"): "" for name in found.folders}
        return dict(sorted(marks.items()))

    def size(self, name: str) -> int:
        """Return an object's length. Raises: FileNotFoundError, StoreError."""
        return self._facts_of(name)[0]

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return bytes of an object.

        Args: as `Files.read`.
        Raises: TensorFileError if the object has become shorter; otherwise the errors of `size`.
        """
        size, etag = self._facts_of(name)
        end = min(start + length, size)
        if end <= start:
            return b""
        first, beyond = start // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        pieces = {number: self._blocks.get((name, etag, number)) for number in range(first, beyond)}
        missing = [number for number, piece in pieces.items() if piece is None]
        for number in missing:
            if pieces[number] is not None:
                continue  # was fetched together with the previous block
            last = number
            while last + 1 < beyond and pieces[last + 1] is None:
                last += 1
            at = number * BLOCK_BYTES
            data = self._fetch(name, at, min(size, (last + 1) * BLOCK_BYTES) - at)
            for place in range(number, last + 1):
                pieces[place] = data[(place - number) * BLOCK_BYTES : (place - number + 1) * BLOCK_BYTES]
                self._blocks.put((name, etag, place), pieces[place] or b"")
        whole = b"".join(piece or b"" for piece in pieces.values())
        return whole[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def prepare(self, names: Sequence[str]) -> None:
        """Fetch the first blocks of listed objects, several at a time."""
        missing = [
            (name, size, etag)
            for name, (size, etag) in ((name, self._facts[name]) for name in names if name in self._facts)
            if size and self._blocks.get((name, etag, 0)) is None
        ]
        if len(missing) < 2:
            return
        with ThreadPoolExecutor(min(THREADS, len(missing)), thread_name_prefix="clary-trial") as pool:
            blocks = pool.map(lambda one: self._beginning(one[0], one[1]), missing)
            for (name, _, etag), block in zip(missing, blocks, strict=True):
                if block is not None:
                    self._blocks.put((name, etag, 0), block)

    def _beginning(self, name: str, size: int) -> bytes | None:
        try:
            return self._fetch(name, 0, min(size, BLOCK_BYTES))
        except (OSError, TensorFileError):
            return None

    def _fetch(self, name: str, start: int, length: int) -> bytes:
        data = self._bucket.read(self._base + name, start, length)
        if len(data) != length:
            raise TensorFileError(
                f"{self}{name} gave {len(data)} bytes at {start}, expected {length}: was it replaced?"
            )
        return data

    def _facts_of(self, name: str) -> tuple[int, str]:
        if name not in self._facts:
            key = self._base + name
            for item in self._bucket.list(key).objects:
                if item.key == key:
                    self._facts[name] = (item.size_bytes, item.etag)
                    break
            else:
                raise FileNotFoundError(errno.ENOENT, "there is no such object", f"{self}{name}")
        return self._facts[name]


def open_s3_files(uri: str, *, cache_bytes: int = CACHE_BYTES, cache_place: Path | None = None) -> S3Files:
    """Return the files below a prefix of S3.

    Args:
        uri: s3://bucket/prefix; the prefix may be missing.
        cache_bytes: maximum total size of the blocks on this machine's disk, in bytes.
        cache_place: parent of the blocks' folder; None for the temporary directory.
    Raises: ConfigurationError for another kind of URI, or if neither boto3 nor the job's variables give access to S3.
    """
    from clary.train.debugger.reading.s3_access import open_bucket  # saves 31 ms in programs that do not read S3

    bucket, _, prefix = uri.removeprefix(SCHEME).partition("/")
    if not uri.startswith(SCHEME) or not bucket:
        raise ConfigurationError(f"{uri!r} names no bucket; expected s3://bucket/prefix")
    return S3Files(open_bucket(bucket), prefix.rstrip("/"), cache_bytes=cache_bytes, cache_place=cache_place)
