"""One log stream in one append-only file.

Where: `LogStore` keeps a few of these open; agents append through the service, log queries read. Threads: the caller
must hold a lock for every method of `StreamFile`; a `StreamView` needs no lock and keeps no file open, so that a search
may hold views of thousands of streams.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clary.base.errors import Fault, StoreError
from clary.contract.agent_protocol import LogBlock
from clary.control.store.errors import SequenceGap, StreamNotFound
from clary.control.store.log_files import log_records
from clary.control.store.log_files.log_index import LogIndex, load_index
from clary.control.store.log_files.log_records import LogRecord, StreamHeader

_HEADER_BYTES = 16 * 1024  # more than the longest header
_FILE_MODE = 0o600

_log = logging.getLogger(__name__)


def create_stream_file(path: Path, header: StreamHeader) -> None:
    """Create the file of an empty stream, completely or not at all.

    Raises: StoreError.
    """
    temporary = path.with_suffix(".new")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE), "wb") as file:
            file.write(log_records.pack_header(header))
        os.replace(temporary, path)
    except OSError as error:
        raise _failure("create", path, error) from error


def read_stream_name(path: Path) -> str:
    """Return the name of the stream in a file.

    Raises: StoreError for a file that is not a log stream.
    """
    with path.open("rb") as file:
        header, _start = log_records.unpack_header(file.read(_HEADER_BYTES), path=str(path))
    return header.stream


class StreamFile:
    """An open stream. Opening cuts off a torn last record.

    Raises: StoreError if the file cannot be opened or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._index_path = path.with_suffix(".idx")
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise _failure("open", path, error) from error
        try:
            self.header, start = log_records.unpack_header(self._read(0, _HEADER_BYTES), path=str(path))
            self._start = start
            self.index, self._num_saved = self._load(start)
        except BaseException:
            os.close(self._file)
            raise

    @property
    def stored_bytes(self) -> int:
        """Bytes of the stream's records."""
        return self.index.end - self._start

    def append(self, first_sequence: int, blocks: Sequence[LogBlock], *, now_ms: int) -> int:
        """Store the lines that are not stored yet; return the number of the next expected line.

        Times never decrease within a stream: a line with an earlier time gets the previous line's time.

        Args:
            first_sequence: number of the first line, from 0; lines that are stored already are dropped.
            blocks: their lines are numbered without gaps.
            now_ms: time of arrival, in ms since 1970.
        Raises: SequenceGap if lines are missing before the first; StoreError if the disk refuses. Then no line of the
            batch is stored.
        """
        index = self.index
        if first_sequence > index.next_sequence:
            raise SequenceGap(self.header.stream, next_sequence=index.next_sequence, first_sequence=first_sequence)
        at_ms = index.last_at_ms or 0
        ingestion_ms = max(now_ms, index.last_ingestion_ms or 0)
        records = []
        runs = []  # sizes of records with the same time, and that time
        for block in _behind(blocks, index.next_sequence - first_sequence):
            at_ms = min(max(at_ms, block.at_ms), log_records.MAX_TIME_MS)
            packed, sizes = log_records.pack_lines(block.text, at_ms=at_ms, ingestion_ms=ingestion_ms, rank=block.rank)
            records.append(packed)
            runs.append((sizes, at_ms))
        self._write(b"".join(records))
        for sizes, run_at_ms in runs:
            index.add_run(sizes, at_ms=run_at_ms, ingestion_ms=ingestion_ms)
        return index.next_sequence

    def flush(self) -> None:
        """Force all stored lines to disk, and save the index beside the file.

        Raises: StoreError if the lines cannot be forced to disk; a failure to save the index, which is only a cache, is
        ignored.
        """
        try:
            os.fsync(self._file)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)  # makes the file's name durable
            finally:
                os.close(folder)
        except OSError as error:
            raise _failure("flush", self._path, error) from error
        self._save_index()

    def close(self) -> None:
        """Save the index beside the file, and close the file."""
        self._save_index()
        os.close(self._file)

    def view(self) -> StreamView:
        """Return a snapshot of the stream, which any thread can read while others append."""
        return StreamView(
            header=self.header,
            index=self.index,
            next_sequence=self.index.next_sequence,
            end=self.index.end,
            num_blocks=len(self.index.block_offsets),
            path=self._path,
        )

    def _load(self, start: int) -> tuple[LogIndex, int]:
        """Return the file's index, and the number of records that the saved index counts, -1 without a usable one.

        The index is built from the saved index and the records after it. A torn last record is cut off.
        """
        size = os.fstat(self._file).st_size
        saved = load_index(self._index_path, file_size=size)
        index, num_saved = (LogIndex(end=start), -1) if saved is None else (saved, saved.next_sequence)
        for record in log_records.scan(self._read, start=index.end, size=size, path=str(self._path)):
            index.add(offset=record.offset, end=record.end, at_ms=record.at_ms, ingestion_ms=record.ingestion_ms)
        if index.end < size:
            os.ftruncate(self._file, index.end)
        return index, num_saved

    def _read(self, offset: int, count: int) -> bytes:
        return _read_fully(self._file, offset, count, path=self._path)

    def _write(self, data: bytes) -> None:
        """Write all of `data` after the last record, or nothing."""
        offset = self.index.end
        try:
            with memoryview(data) as left:
                position = 0
                while position < len(data):
                    position += os.pwrite(self._file, left[position:], offset + position)
        except OSError as error:
            with contextlib.suppress(OSError):  # the next write or the next opening removes the incomplete record
                os.ftruncate(self._file, offset)
            raise _failure("append to", self._path, error) from error

    def _save_index(self) -> None:
        if self._num_saved == self.index.next_sequence:
            return
        try:
            self.index.save(self._index_path)
        except OSError as error:  # the index only spares the next opening from reading the file
            _log.warning("%s", _failure("save the index of", self._path, error))
        else:
            self._num_saved = self.index.next_sequence


@dataclass(frozen=True, kw_only=True)
class StreamView:
    """Snapshot of a stream: records 0 to `next_sequence` - 1."""

    header: StreamHeader
    index: LogIndex  # grows with further appends; the fields below tell which of its records belong to the view
    next_sequence: int
    end: int
    num_blocks: int
    path: Path

    def first_at_or_after(self, at_ms: int) -> int:
        """Return the number of the first record at or after a time; `next_sequence` if all are older."""
        if not self.num_blocks:
            return 0
        first_block = self.index.block_before_time(at_ms, num_blocks=self.num_blocks)
        # The record is in this block, or is the next block's first record.
        for record in self._block(first_block):
            if record.at_ms >= at_ms:
                return record.sequence
        if first_block + 1 < self.num_blocks:
            return self.index.block_sequences[first_block + 1]
        return self.next_sequence

    def forward(self, first: int, stop: int) -> Iterator[LogRecord]:
        """Yield records `first` to `stop` - 1, reading a block at a time."""
        stop = min(stop, self.next_sequence)
        if first >= stop:
            return
        for number in range(self.index.block_of(first, num_blocks=self.num_blocks), self.num_blocks):
            for record in self._block(number):
                if record.sequence >= stop:
                    return
                if record.sequence >= first:
                    yield record

    def backward(self, first: int, stop: int) -> Iterator[LogRecord]:
        """Yield records `stop` - 1 down to `first`, reading a block at a time."""
        stop = min(stop, self.next_sequence)
        if first >= stop:
            return
        for number in range(self.index.block_of(stop - 1, num_blocks=self.num_blocks), -1, -1):
            for record in reversed(self._block(number)):
                if record.sequence < first:
                    return
                if record.sequence < stop:
                    yield record

    def block_of(self, sequence: int) -> int:
        """Return the number of the block that holds a record of this view."""
        return self.index.block_of(sequence, num_blocks=self.num_blocks)

    def block_bytes(self, number: int) -> bytes:
        """Return the bytes of a block in the file: searching them is much faster than searching its records.

        Raises: StreamNotFound if the stream was deleted; StoreError.
        """
        offset = self.index.block_offsets[number]
        stop = self.index.block_offsets[number + 1] if number + 1 < self.num_blocks else self.end
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:  # deleted meanwhile
            raise StreamNotFound(self.header.stream) from error
        except OSError as error:
            raise _failure("open", self.path, error) from error
        try:
            return _read_fully(file, offset, stop - offset, path=self.path)
        finally:
            os.close(file)

    def block_records(self, number: int, data: bytes) -> list[LogRecord]:
        """Return the records of a block whose bytes were read.

        Raises: StreamDamaged naming the first damaged record.
        """
        first_sequence, offset = self.index.block_sequences[number], self.index.block_offsets[number]
        return log_records.unpack_block(data, first_sequence=first_sequence, first_offset=offset, path=str(self.path))

    def _block(self, number: int) -> list[LogRecord]:
        return self.block_records(number, self.block_bytes(number))


def _behind(blocks: Sequence[LogBlock], num_lines: int) -> Iterator[LogBlock]:
    """Yield the blocks without the lines that are stored already."""
    for block in blocks:
        count = block.num_lines if num_lines else 0
        if not count:
            yield block
        elif num_lines >= count:
            num_lines -= count
        else:
            yield replace(block, text="\n".join(block.lines()[num_lines:]))
            num_lines = 0


def _read_fully(file: int, offset: int, count: int, *, path: Path) -> bytes:
    """Return `count` bytes at `offset`, fewer only where the file ends."""
    parts = []
    while count > 0:
        try:
            data = os.pread(file, count, offset)
        except OSError as error:
            raise _failure("read", path, error) from error
        if not data:
            break
        parts.append(data)
        offset += len(data)
        count -= len(data)
    return b"".join(parts)


def _failure(doing: str, path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot {doing} log file {path}: {error.strerror or error}; look for a full disk, a limit on open files, or "
        f"permissions",
        fault=Fault.INFRASTRUCTURE,
        retryable=True,
        details={"path": str(path), "errno": error.errno},
    )
