"""Log lines on local disk, numbered, from when they are printed until the service has stored them.

Where: `log_intake` appends, `log_shipper` reads and lets go of what the service has. The spool is what keeps a program
apart from the service: printing costs one write to a local file, whether the service is there or not, and memory stays
bounded. Files of `SEGMENT_BYTES` each, named after their first line's number, are removed as soon as every line in them
is stored.

A record is a header (time in ms, rank or -1, size of the text in bytes) and the text in UTF-8.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from clary.contract.agent_protocol import LogLine
from clary.contract.errors import AgentError

SEGMENT_BYTES = 16 * 1024 * 1024
_HEADER = struct.Struct("<qii")
_NO_RANK = -1
_READ_BYTES = 1024 * 1024


@dataclass
class _Segment:
    """One file of the spool."""

    path: Path
    descriptor: int
    first_sequence: int
    num_lines: int = 0
    size_bytes: int = 0


@dataclass
class _Cursor:
    """Where reading stands: the next line's number and its place."""

    sequence: int = 0
    segment_first: int = 0  # number of the first line of the segment
    offset: int = 0
    unread: list[LogLine] = field(default_factory=list)  # lines read from the file and not given out yet


class LogSpool:
    """An append-only queue of lines on disk; safe for many writers and one reader.

    Args:
        folder: where the files lie; made if it does not exist.
        segment_bytes: size at which a new file begins.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._changed = threading.Condition()
        self._segments: list[_Segment] = []
        self._end_sequence = 0
        self._last_at_ms = 0
        self._num_lost = 0
        self._cursor = _Cursor()
        self._is_woken = False
        self._is_closed = False

    @property
    def end_sequence(self) -> int:
        """Number that the next line gets; lines 0 to this less one have been appended."""
        return self._end_sequence

    @property
    def num_lost(self) -> int:
        """Lines that could not be written because the disk refused them."""
        return self._num_lost

    def append(self, texts: Iterable[str], *, rank: int | None = None, at_ms: int | None = None) -> None:
        """Write lines, with one time for all of them; times never go back within a spool.

        Never raises for a full disk: the lines are counted in `num_lost`, and nobody waits.
        """
        with self._changed:
            if self._is_closed:
                return
            now_ms = at_ms if at_ms is not None else time.time_ns() // 1_000_000
            self._last_at_ms = max(self._last_at_ms, now_ms)
            rank_number = _NO_RANK if rank is None else rank
            records = bytearray()
            num_lines = 0
            for text in texts:
                encoded = text.encode("utf-8", "backslashreplace")
                records += _HEADER.pack(self._last_at_ms, rank_number, len(encoded))
                records += encoded
                num_lines += 1
            if num_lines and not self._write(records, num_lines):
                self._num_lost += num_lines
            self._changed.notify_all()

    def wait(self, after: int, timeout_s: float) -> bool:
        """Wait until a line with a number of `after` or more is there, `wake` is called, or `timeout_s` have passed."""
        with self._changed:
            has_come = self._changed.wait_for(lambda: self._end_sequence > after or self._is_woken, timeout_s)
            self._is_woken = False
            return has_come

    def wake(self) -> None:
        """End the current or the next `wait` at once."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def read(self, first_sequence: int, *, max_lines: int, max_bytes: int) -> list[LogLine]:
        """Return lines from number `first_sequence` on: at least one if there is one, else up to both bounds.

        Raises: AgentError for a number that has been let go, or when the disk does not give back what it took.
        """
        if first_sequence != self._cursor.sequence:
            self._seek(first_sequence)
        lines: list[LogLine] = []
        size_bytes = 0
        while len(lines) < max_lines:
            if not self._cursor.unread and not self._fill():
                break
            line = self._cursor.unread[-1]
            size_bytes += len(line.text) if line.text.isascii() else len(line.text.encode())
            if lines and size_bytes > max_bytes:
                break
            lines.append(self._cursor.unread.pop())
            self._cursor.sequence += 1
        return lines

    def let_go(self, next_sequence: int) -> None:
        """Remove files in which every line has a number below `next_sequence`."""
        with self._changed:
            while len(self._segments) > 1 and self._segments[1].first_sequence <= next_sequence:
                if self._segments[1].first_sequence > self._cursor.sequence:
                    break  # still being read
                _remove(self._segments.pop(0))

    def close(self) -> None:
        """Remove every file; later lines are dropped."""
        with self._changed:
            self._is_closed = True
            while self._segments:
                _remove(self._segments.pop())
            self._changed.notify_all()

    def _write(self, records: bytearray, num_lines: int) -> bool:
        try:
            segment = self._writable_segment()
            written = 0
            view = memoryview(records)
            while written < len(records):
                written += os.pwrite(segment.descriptor, view[written:], segment.size_bytes + written)
        except OSError:
            return False  # what was written of it lies beyond `size_bytes` and is written over by the next lines
        segment.size_bytes += len(records)
        segment.num_lines += num_lines
        self._end_sequence += num_lines
        return True

    def _writable_segment(self) -> _Segment:
        if self._segments and self._segments[-1].size_bytes < self._segment_bytes:
            return self._segments[-1]
        path = self._folder / f"{self._end_sequence:012d}.lines"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._segments.append(_Segment(path=path, descriptor=descriptor, first_sequence=self._end_sequence))
        return self._segments[-1]

    def _seek(self, sequence: int) -> None:
        """Set the cursor by reading from the start of the segment; rare: the service asked for lines again."""
        with self._changed:
            holding = [segment for segment in self._segments if segment.first_sequence <= sequence]
            if not holding and self._segments:
                raise AgentError(
                    f"log line {sequence} is asked for, but lines below {self._segments[0].first_sequence} were stored"
                    " by the service and removed here; the service has lost lines"
                )
            first = holding[-1].first_sequence if holding else 0
        self._cursor = _Cursor(sequence=first, segment_first=first)
        while self._cursor.sequence < sequence and (self._cursor.unread or self._fill()):
            self._cursor.unread.pop()
            self._cursor.sequence += 1

    def _fill(self) -> bool:
        """Read the next stretch of records into the cursor; false when there is none."""
        cursor = self._cursor
        with self._changed:
            segments = [segment for segment in self._segments if segment.first_sequence >= cursor.segment_first]
            if not segments:
                return False
            segment = segments[0]
            # The segment read last may have been let go: then the offset says nothing about the one that is first now.
            is_read = segment.first_sequence == cursor.segment_first and cursor.offset >= segment.size_bytes
            if is_read and len(segments) > 1:
                segment = segments[1]
            if segment.first_sequence != cursor.segment_first:
                cursor.segment_first, cursor.offset = segment.first_sequence, 0
            size_bytes = segment.size_bytes
            descriptor = segment.descriptor
        if cursor.offset >= size_bytes:
            return False
        lines, used = _parse(os.pread(descriptor, min(_READ_BYTES, size_bytes - cursor.offset), cursor.offset))
        if not lines:
            raise AgentError(f"{segment.path}: expected {size_bytes} bytes of log lines, the disk gives back fewer")
        cursor.offset += used
        lines.reverse()
        cursor.unread = lines
        return True


def _parse(data: bytes) -> tuple[list[LogLine], int]:
    """Return the whole records at the start of `data` and how many bytes they take."""
    lines = []
    offset = 0
    while offset + _HEADER.size <= len(data):
        at_ms, rank, size_bytes = _HEADER.unpack_from(data, offset)
        start = offset + _HEADER.size
        if start + size_bytes > len(data):
            break
        offset = start + size_bytes
        text = data[start:offset].decode()
        lines.append(LogLine(at_ms=at_ms, text=text, rank=None if rank == _NO_RANK else rank))
    return lines, offset


def _remove(segment: _Segment) -> None:
    os.close(segment.descriptor)
    segment.path.unlink(missing_ok=True)
