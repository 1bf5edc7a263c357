"""Packs a table into bytes: each column's bytes are grouped by their position in the number, then deflated.

Where: `store.series_blocks` stores the bytes. The first bytes of successive floats are similar, the last bytes are
noise: once grouped, zlib compresses the first bytes well (to about one byte per value on data of hosts; XOR with the
previous value is no better).

    magic, checksum of all that follows, rows, parts, bytes of the head
    head, deflated: names, one per line; an empty line; times as differences
    for each chunk of columns: its length, then its bytes, deflated

A chunk contains whole columns: as many as fit into CHUNK_BYTES before they are deflated, or one longer column. So one
column of a large block can be read without the others.
Source: the shuffle filter of HDF5 and Blosc, as an idea.
"""

from __future__ import annotations

import operator
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate

from clary.base.errors import Fault, StoreError
from clary.control.series.tables import ROLL_UP_PARTS, ROW_PARTS, SeriesTable

CHUNK_BYTES = 16 * 1024
LEVEL = 6  # level of zlib; 9 takes five times as long for half a percent
MAX_BLOCK_ROWS = 2**20
MAX_HEAD_BYTES = 64 * 1024 * 1024
_MAGIC = b"CLS1"
_HEAD = struct.Struct("<4sIIHI")
_LENGTH = struct.Struct("<I")
_CHECKED_FROM = 8  # the checksum covers neither the magic nor itself
_TIME_BYTES = 8
_FLOAT_BYTES = 4
_PARTS = {len(parts): parts for parts in (ROW_PARTS, ROLL_UP_PARTS)}


class SeriesDamaged(StoreError):
    """A damaged block: its bytes differ from the written ones. Other blocks stay readable."""

    default_fault = Fault.INFRASTRUCTURE


def pack(table: SeriesTable) -> bytes:
    """Return a table as bytes. Raises: ValueError."""
    if table.num_rows > MAX_BLOCK_ROWS:
        raise ValueError(f"a block has at most {MAX_BLOCK_ROWS} rows, got {table.num_rows}")
    names = "\n".join(table.columns).encode("ascii")
    times = array("q", [0] * table.num_rows)
    if table.num_rows:
        times = array("q", map(operator.sub, table.at_ms, array("q", [0]) + table.at_ms[:-1]))
    head = zlib.compress(names + b"\n\n" + _shuffled(_little(times), _TIME_BYTES), LEVEL)
    pieces = [head]
    columns = [column for parts in table.columns.values() for column in parts]
    per_chunk = _columns_per_chunk(table.num_rows)
    for first in range(0, len(columns), per_chunk):
        packed = zlib.compress(_apart(columns[first : first + per_chunk], table.num_rows), LEVEL)
        pieces += [_LENGTH.pack(len(packed)), packed]
    body = b"".join(pieces)
    start = _HEAD.pack(_MAGIC, 0, table.num_rows, len(table.parts), len(head))[_CHECKED_FROM:]
    return _MAGIC + _LENGTH.pack(zlib.crc32(body, zlib.crc32(start))) + start + body


def unpack(data: bytes, *, wanted: Callable[[str], bool] | None = None, place: str = "a block") -> SeriesTable:
    """Return the packed table, or only its wanted series.

    Args:
        data: as `pack` returns it; its checksum is verified.
        wanted: returns whether to read the series of a name; None reads all series.
        place: name of the block in the error's text.
    Raises: SeriesDamaged naming `place`.
    """
    try:
        return _unpacked(data, wanted)
    except (ValueError, KeyError, struct.error, zlib.error, OverflowError) as error:
        raise SeriesDamaged(
            f"{place} of series is damaged ({error}): its time span is left out; restore the database from a "
            "backup to recover it"
        ) from error


def _unpacked(data: bytes, wanted: Callable[[str], bool] | None) -> SeriesTable:
    magic, checksum, num_rows, num_parts, num_head_bytes = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic!r}, expected {_MAGIC!r}")
    if zlib.crc32(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise ValueError("it fails its checksum")
    if num_rows > MAX_BLOCK_ROWS:
        raise ValueError(f"{num_rows} rows, expected at most {MAX_BLOCK_ROWS}")
    position = _HEAD.size + num_head_bytes
    head = _inflated(data[_HEAD.size : position], MAX_HEAD_BYTES)
    names_text, _, times = head.partition(b"\n\n")
    names = names_text.decode("ascii").split("\n") if names_text else []
    at_ms = array("q", map(int, accumulate(_numbers("q", times, num_rows))))
    parts = _PARTS[num_parts]
    kept = set(names) if wanted is None else set(filter(wanted, names))
    places = [(name, part) for name in names for part in range(num_parts)]
    found: dict[str, list[array[float]]] = {}
    per_chunk = _columns_per_chunk(num_rows)
    column_bytes = num_rows * _FLOAT_BYTES
    for first in range(0, len(places), per_chunk):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        chunk = places[first : first + per_chunk]
        is_wanted = [name in kept for name, _ in chunk]
        if any(is_wanted):
            raw = _inflated(data[position : position + length], column_bytes * len(chunk))
            for (name, _), column in zip(chunk, _together(raw, num_rows, is_wanted), strict=True):
                if column is not None:
                    found.setdefault(name, []).append(column)
        position += length
    return SeriesTable(at_ms=at_ms, columns={name: tuple(columns) for name, columns in found.items()}, parts=parts)


def names_in(data: bytes) -> list[str]:
    """Return the names of a block's series; raises SeriesDamaged."""
    return list(unpack(data).columns)


def _columns_per_chunk(num_rows: int) -> int:
    return max(1, CHUNK_BYTES // max(1, num_rows * _FLOAT_BYTES))


def _inflated(data: bytes, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    raw = inflater.decompress(data, max_bytes + 1)
    if len(raw) > max_bytes or not inflater.eof:
        raise ValueError("a piece is longer than its rows require, or truncated")
    return raw


def _shuffled(raw: bytes, width: int) -> bytes:
    return b"".join(raw[place::width] for place in range(width))


def _numbers(kind: str, shuffled: bytes, count: int) -> array[float]:
    """Return the numbers of a column whose bytes were grouped."""
    numbers: array[float] = array(kind)
    if len(shuffled) != count * numbers.itemsize:
        raise ValueError(f"a column has {len(shuffled)} bytes, expected {count * numbers.itemsize}")
    raw = bytearray(len(shuffled))
    for place in range(numbers.itemsize):
        raw[place :: numbers.itemsize] = shuffled[place * count : (place + 1) * count]
    numbers.frombytes(raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _apart(columns: Sequence[array[float]], num_rows: int) -> bytes | bytearray:
    """Return columns with grouped bytes: of each column all first bytes, then all second bytes, and so on."""
    raw = b"".join(map(_little, columns))
    column_bytes = num_rows * _FLOAT_BYTES
    if num_rows >= len(columns):
        starts = range(0, len(raw), column_bytes or 1)
        return b"".join(
            raw[start + place : start + column_bytes : _FLOAT_BYTES]
            for start in starts
            for place in range(_FLOAT_BYTES)
        )
    moved = bytearray(len(raw))  # few rows of many columns: copies a byte of a row for all columns at once
    for row in range(num_rows):
        for place in range(_FLOAT_BYTES):
            moved[place * num_rows + row :: column_bytes] = raw[row * _FLOAT_BYTES + place :: column_bytes]
    return moved


def _together(raw: bytes, num_rows: int, is_wanted: Sequence[bool]) -> list[array[float] | None]:
    """Return the columns from which `_apart` made these bytes, with None for unwanted columns."""
    column_bytes = num_rows * _FLOAT_BYTES
    if len(raw) != column_bytes * len(is_wanted):
        raise ValueError(f"a piece has {len(raw)} bytes, expected {len(is_wanted)} columns of {column_bytes}")
    if num_rows >= len(is_wanted):
        return [
            _numbers("f", raw[index * column_bytes : (index + 1) * column_bytes], num_rows) if wanted else None
            for index, wanted in enumerate(is_wanted)
        ]
    moved = bytearray(len(raw))
    for row in range(num_rows):
        for place in range(_FLOAT_BYTES):
            moved[row * _FLOAT_BYTES + place :: column_bytes] = raw[place * num_rows + row :: column_bytes]
    numbers: array[float] = array("f")
    numbers.frombytes(moved)
    if sys.byteorder == "big":
        numbers.byteswap()
    return [
        numbers[index * num_rows : (index + 1) * num_rows] if wanted else None for index, wanted in enumerate(is_wanted)
    ]


def _little(numbers: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()
