r"""The layout of log files: a header line, then records with a length and a checksum.

Where: `StreamFile` writes and reads them; no other module knows the layout.

    CLARYLOG1 {"stream": ..., "created_at_ms": ..., "stream_id": ...}\n
    record: length of the message, checksum of all that follows, time, ingestion time, rank, message in UTF-8

A crash during a write leaves an incomplete last record, and a power cut may leave zeros in place of data that was not
on disk yet; `scan` calls both kinds torn, and stops there. Any other invalid record is damage, which is reported and
never skipped.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple

from clary.control.store.errors import StreamDamaged

MAX_MESSAGE_BYTES = 256 * 1024  # CloudWatch's limit on an event
# Bytes that CloudWatch counts for each event besides its message (PutLogEvents, quotas).
EVENT_OVERHEAD_BYTES = 26
NO_RANK = -1
MAX_TIME_MS = 253_402_300_799_999  # end of the year 9999, the last that clients can print

Reader = Callable[[int, int], bytes]  # (offset, count) -> up to `count` bytes, fewer only at the end of the file

_MAGIC = b"CLARYLOG1 "
_RECORD = struct.Struct("<IIqqi")
_LENGTH_AND_CHECKSUM = struct.Struct("<II")
_CHECKED = struct.Struct("<qqi")
_SUSPICIOUS_CHARACTERS = MAX_MESSAGE_BYTES // 4  # UTF-8 has at most 4 bytes per character
_CHECKSUM_END = 8  # the checksum covers neither the length nor itself
_MAX_RANK = 2**31 - 1
# Longest record in bytes; a record with a greater length is damaged.
_MAX_RECORD_BYTES = _RECORD.size + MAX_MESSAGE_BYTES
# JSON from agents may contain lone surrogates; they are stored unchanged.
_LENIENT = "surrogatepass"


class LogRecord(NamedTuple):
    """One stored line."""

    sequence: int  # its number in the stream, from 0
    at_ms: int
    ingestion_ms: int
    rank: int  # NO_RANK if the line has none
    message: str
    size_bytes: int  # size of the message in UTF-8


class ScannedRecord(NamedTuple):
    """Fields of a record that the opening scan needs."""

    offset: int
    end: int
    at_ms: int
    ingestion_ms: int


@dataclass(frozen=True, kw_only=True)
class StreamHeader:
    """First line of a stream's file."""

    stream: str
    created_at_ms: int
    stream_id: int  # random: an earlier stream of the same name had another id


def pack_header(header: StreamHeader) -> bytes:
    """Return the header line."""
    return _MAGIC + json.dumps(header.__dict__).encode("ascii") + b"\n"


def unpack_header(data: bytes, *, path: str) -> tuple[StreamHeader, int]:
    """Return the header at the start of `data` and the offset of the first record.

    Raises: StreamDamaged if the header is missing: a file gets its name only after its header was written.
    """
    end = data.find(b"\n")
    try:
        if not data.startswith(_MAGIC) or end < 0:
            raise ValueError("no header line")
        return StreamHeader(**json.loads(data[len(_MAGIC) : end])), end + 1
    except (ValueError, TypeError) as error:
        raise StreamDamaged(
            f"{path} does not begin with the header of a log stream ({error}): move the file aside and start again"
        ) from error


def pack_lines(text: str, *, at_ms: int, ingestion_ms: int, rank: int | None) -> tuple[bytes, list[int]]:
    """Return the records of lines, as stored in the file, and the size of each record.

    Args:
        text: lines with line ends between them; a line over MAX_MESSAGE_BYTES is cut and ends with a note.
        at_ms: time of all lines, in ms since 1970.
        ingestion_ms: time of their arrival, in the same unit.
        rank: rank of the process that wrote them.
    """
    # Every line of every log passes through here: for speed, no Python statement runs per line.
    messages = text.encode("utf-8", _LENIENT).split(b"\n")
    if len(text) >= _SUSPICIOUS_CHARACTERS:
        messages = [_cut(message) if len(message) > MAX_MESSAGE_BYTES else message for message in messages]
    stored_rank = rank if rank is not None and 0 <= rank <= _MAX_RANK else NO_RANK
    facts = _CHECKED.pack(at_ms, ingestion_ms, stored_rank)
    if b"" in messages:
        messages = [message or b" " for message in messages]  # clients expect at least one character
    lengths = list(map(len, messages))
    heads = map(_LENGTH_AND_CHECKSUM.pack, lengths, map(zlib.crc32, messages, repeat(zlib.crc32(facts))))
    records = b"".join(chain.from_iterable(zip(heads, repeat(facts), messages)))
    return records, [length + _RECORD.size for length in lengths]


def unpack_block(data: bytes, *, first_sequence: int, first_offset: int, path: str) -> list[LogRecord]:
    """Return the records in a part of a log file.

    Args:
        data: complete records, without gaps.
        first_sequence: number of the first record.
        first_offset: offset of its first byte in the file.
        path: path of the log file, for the error.
    Raises: StreamDamaged naming the first damaged record.
    """
    records: list[LogRecord] = []
    position = 0
    while position < len(data):
        if len(data) - position < _RECORD.size:
            raise _damage(path, first_offset + position, "ends within a record")
        length, checksum, at_ms, ingestion_ms, rank = _RECORD.unpack_from(data, position)
        start, end = position + _RECORD.size, position + _RECORD.size + length
        if end > len(data) or zlib.crc32(data[position + _CHECKSUM_END : end]) != checksum:
            raise _damage(path, first_offset + position, "fails its checksum")
        message = data[start:end].decode("utf-8", _LENIENT)
        records.append(LogRecord(first_sequence + len(records), at_ms, ingestion_ms, rank, message, length))
        position = end
    return records


def scan(read: Reader, *, start: int, size: int, path: str) -> Iterator[ScannedRecord]:
    """Yield the records from offset `start` to the end of the file, or to a torn record.

    Args:
        read: returns up to `count` bytes at an offset.
        start: offset of a record.
        size: size of the file.
        path: path of the log file, for the error.

    Raises: StreamDamaged at a damaged record that is not torn.
    """
    offset = start
    buffer, buffer_start = b"", start
    while offset < size:
        if offset + _MAX_RECORD_BYTES > buffer_start + len(buffer) and buffer_start + len(buffer) < size:
            buffer, buffer_start = read(offset, 2 * _MAX_RECORD_BYTES), offset
        position = offset - buffer_start
        if len(buffer) - position < _RECORD.size:
            return
        length, checksum, at_ms, ingestion_ms, _rank = _RECORD.unpack_from(buffer, position)
        end = offset + _RECORD.size + length
        is_plausible = 0 < length <= MAX_MESSAGE_BYTES
        if is_plausible and end > size:
            return
        checked = buffer[position + _CHECKSUM_END : end - buffer_start]
        if not is_plausible or zlib.crc32(checked) != checksum:
            if _is_zero_to_end(read, offset=end if is_plausible else offset, size=size):
                return
            raise _damage(path, offset, "fails its checksum")
        yield ScannedRecord(offset, end, at_ms, ingestion_ms)
        offset = end


def _cut(payload: bytes) -> bytes:
    note_bytes = 64  # leaves space for the note below
    end = MAX_MESSAGE_BYTES - note_bytes
    while payload[end] & 0b1100_0000 == 0b1000_0000:  # a continuation byte of a character
        end -= 1
    return payload[:end] + f" ... [line cut by the log store: {len(payload) - end} bytes more]".encode("ascii")


def _is_zero_to_end(read: Reader, *, offset: int, size: int) -> bool:
    while offset < size:
        data = read(offset, _MAX_RECORD_BYTES)
        if data.strip(b"\0"):
            return False
        offset += len(data)
    return True


def _damage(path: str, offset: int, words: str) -> StreamDamaged:
    return StreamDamaged(
        f"log file {path} is damaged: the record at offset {offset} {words}; what stands before it is intact: "
        f"restore the file from a backup, or cut it at that offset",
        details={"path": path, "offset": offset},
    )
