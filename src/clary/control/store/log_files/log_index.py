"""The offsets of blocks of records in a log file, to locate a line by number or time without reading the whole file.

Where: `StreamFile` keeps an index in memory for each open stream (24 bytes for every block of up to 256 lines) and
saves it beside the file when it closes, so that opening again does not read the whole file. The saved index is a cache:
an index that is missing, damaged or ahead of its log file is not used; an index that is behind is completed from the
log file.
"""

from __future__ import annotations

import json
import os
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

BLOCK_RECORDS = 256
BLOCK_BYTES = 256 * 1024  # bytes after which a block ends even with fewer records; bounds the work of one read
_MAGIC = "CLARYINDEX1"


def _numbers() -> array[int]:
    return array("q")


@dataclass(kw_only=True)
class LogIndex:
    """Blocks of a stream and its summary; grows with every record."""

    end: int  # offset after the last record
    next_sequence: int = 0
    first_at_ms: int | None = None
    last_at_ms: int | None = None
    last_ingestion_ms: int | None = None
    block_sequences: array[int] = field(default_factory=_numbers)  # number of each block's first record
    block_offsets: array[int] = field(default_factory=_numbers)
    block_times_ms: array[int] = field(default_factory=_numbers)

    def add(self, *, offset: int, end: int, at_ms: int, ingestion_ms: int) -> None:
        """Add the next record.

        Args:
            offset: offset of its first byte in the file.
            end: offset after its last byte.
            at_ms: its time, in ms since 1970; not before the last record's.
            ingestion_ms: time of its arrival, in the same unit.
        """
        if not self.block_offsets or (
            self.next_sequence - self.block_sequences[-1] >= BLOCK_RECORDS
            or offset - self.block_offsets[-1] >= BLOCK_BYTES
        ):
            self.block_sequences.append(self.next_sequence)
            self.block_times_ms.append(at_ms)
            # Appended last: a reader on another thread uses this list's length as the number of blocks.
            self.block_offsets.append(offset)
        if self.first_at_ms is None:
            self.first_at_ms = at_ms
        self.last_at_ms = at_ms
        self.last_ingestion_ms = ingestion_ms
        self.end = end
        self.next_sequence += 1

    def add_run(self, sizes: Sequence[int], *, at_ms: int, ingestion_ms: int) -> None:
        """Add several consecutive records with the same time.

        Args:
            sizes: sizes of the records in bytes, including their headers.
            at_ms: time of all of them, in ms since 1970.
            ingestion_ms: time of their arrival, in the same unit.
        """
        first = 0
        while first < len(sizes):
            # The first record may begin a block; the next ones fill that block, or a part of it.
            self.add(offset=self.end, end=self.end + sizes[first], at_ms=at_ms, ingestion_ms=ingestion_ms)
            first += 1
            room_bytes = self.block_offsets[-1] + BLOCK_BYTES - self.end
            some = sizes[first : first + self.block_sequences[-1] + BLOCK_RECORDS - self.next_sequence]
            if sum(some) > room_bytes:  # the record that crosses the bound still belongs to the block
                some = some[: bisect_left(list(accumulate(some)), room_bytes) + 1] if room_bytes > 0 else ()
            self.end += sum(some)
            self.next_sequence += len(some)
            first += len(some)

    def block_of(self, sequence: int, *, num_blocks: int) -> int:
        """Return the number of the block that holds a record."""
        return bisect_right(self.block_sequences, sequence, hi=num_blocks) - 1

    def block_before_time(self, at_ms: int, *, num_blocks: int) -> int:
        """Return the last block that begins before `at_ms`, or the first block.

        Lines of `at_ms` or later lie in that block or after it.
        """
        return max(0, bisect_left(self.block_times_ms, at_ms, hi=num_blocks) - 1)

    def save(self, path: Path) -> None:
        """Write the index beside its log file, completely or not at all."""
        body = b"".join(numbers.tobytes() for numbers in self._blocks())
        summary = {
            "magic": _MAGIC,
            "checksum": zlib.crc32(body),
            "num_blocks": len(self.block_offsets),
            "end": self.end,
            "next_sequence": self.next_sequence,
            "first_at_ms": self.first_at_ms,
            "last_at_ms": self.last_at_ms,
            "last_ingestion_ms": self.last_ingestion_ms,
        }
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(json.dumps(summary).encode("ascii") + b"\n" + body)
        os.replace(temporary, path)

    def _blocks(self) -> tuple[array[int], array[int], array[int]]:
        return self.block_sequences, self.block_offsets, self.block_times_ms


def load_index(path: Path, *, file_size: int) -> LogIndex | None:
    """Read the index beside a log file of `file_size` bytes, or return None if it is absent or unusable."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        summary = json.loads(head)
        if summary.pop("magic") != _MAGIC or summary.pop("checksum") != zlib.crc32(body):
            return None
        num_blocks = summary.pop("num_blocks")
        index = LogIndex(**summary)
        part = num_blocks * index.block_offsets.itemsize
        for number, numbers in enumerate(index._blocks()):
            numbers.frombytes(body[number * part : (number + 1) * part])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return index if index.end <= file_size else None
