"""One rank's part of a checkpoint: the bytes of its tensors and values, and an index of their places.

Where: a part is a pair of files, `part-00003.bin` and `part-00003.json`, or the same content in the memory of a rank.
The index is written by renaming after the data is on the disk, so a part with an index is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from clary.train.checkpoint.errors import CheckpointError

FORMAT = 1
WRITE_BYTES = 32 * 1024**2  # bytes per write: large enough for few calls, small enough that write-back begins early

Key = tuple[str, tuple[int, ...] | None]  # a tensor's name and the offset of its piece; a value's name and None


@dataclass(frozen=True, kw_only=True)
class PartIndex:
    """The index of one rank's part of one save."""

    save: str  # unique name of the save, equal on all ranks
    step: int
    rank: int
    num_parts: int  # number of ranks that saved
    num_bytes: int
    places: Mapping[Key, tuple[int, int]]  # start and length

    def to_json(self) -> bytes:
        """Return the content of the index file."""
        places = [[name, offset, *place] for (name, offset), place in self.places.items()]
        return json.dumps({"format": FORMAT, **vars(self), "places": places}).encode()

    @classmethod
    def from_json(cls, data: bytes, where: object) -> PartIndex:
        """Read an index.

        Raises: CheckpointError for a file that is not an index, or has a later format.
        """
        try:
            document: dict[str, Any] = json.loads(data)
            found = document.pop("format")
            if found > FORMAT:
                raise CheckpointError(f"{where} has format {found}, this release knows up to {FORMAT}: upgrade Clary")
            places = {
                (name, None if offset is None else tuple(offset)): (start, length)
                for name, offset, start, length in document.pop("places")
            }
            return cls(**document, places=places)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{where} is no index of a checkpoint's part: {error!r}") from error


class Part(Protocol):
    """A part that can be read, on a disk or in memory."""

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill a buffer with the part's bytes from `start` on. Raises: OSError, CheckpointError."""


def data_name(rank: int) -> str:
    """Return the name of a part's data."""
    return f"part-{rank:05d}.bin"


def index_name(rank: int) -> str:
    """Return the name of a part's index."""
    return f"part-{rank:05d}.json"


def write_part(folder: Path, index: PartIndex, pieces: Sequence[memoryview]) -> None:
    """Write a part and sync it to the disk; a failure leaves no index.

    The interpreter lock is released while bytes are written, so that the training thread does not wait.

    Args:
        pieces: the data in order.

    Raises: OSError.
    """
    handle = os.open(folder / data_name(index.rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        at = 0
        for piece in pieces:
            for start in range(0, len(piece), WRITE_BYTES):
                block = piece[start : start + WRITE_BYTES]
                while block:
                    written = os.pwrite(handle, block, at)
                    block = block[written:]
                    # Makes the kernel write at once, while the next bytes are copied.
                    os.posix_fadvise(handle, at, written, os.POSIX_FADV_DONTNEED)
                    at += written
        os.fsync(handle)
    finally:
        os.close(handle)
    write_whole(folder / index_name(index.rank), index.to_json())


def write_whole(path: Path, data: bytes) -> None:
    """Write a complete file and sync it to the disk, or leave the old file in place.

    Raises: OSError.
    """
    beside = path.with_name(f".{path.name}.part")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder's directory entries to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass
class StoredPart:
    """A part in a folder; the caller must `close` it."""

    folder: Path
    index: PartIndex
    _handle: int | None = None

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill a buffer with the part's bytes from `start` on. Raises: OSError, CheckpointError."""
        if self._handle is None:
            self._handle = os.open(self.folder / data_name(self.index.rank), os.O_RDONLY | os.O_CLOEXEC)
        while buffer:
            found = os.preadv(self._handle, [buffer], start)
            if not found:
                raise CheckpointError(
                    f"{self.folder / data_name(self.index.rank)} ends before byte {start + len(buffer)}; expected "
                    f"{self.index.num_bytes} bytes: it was cut short since it was written"
                )
            start, buffer = start + found, buffer[found:]

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
