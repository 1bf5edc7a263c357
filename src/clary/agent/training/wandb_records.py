"""Records of a run's log as W&B writes it, `run-ID.wandb`, and the values in them. Pure.

Source: the log format of LevelDB (blocks of 32 KiB; pieces of records with a checksum, a length and a type) after a
header of seven bytes that W&B adds, with zlib's CRC-32 as the checksum; Record, HistoryRecord and HistoryItem of
wandb_internal.proto.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from clary.agent.training.event_records import MAX_RECORD_BYTES, Record, Records
from clary.agent.training.json_values import may_have_more_values
from clary.agent.training.value_lines import is_name
from clary.agent.training.wire_fields import as_bytes, as_signed, as_text, fields_of
from clary.contract.training_values import MAX_NAME_CHARACTERS, Finding

PREFIX = b":W&B\xe1\xbe\0"  # ident, a magic number, and the version: the format is private; other versions are unknown
BLOCK_BYTES = 32 * 1024  # no piece crosses the end of one
MAX_DEPTH = 4  # of nested values; W&B itself names them a.b
MAX_NUMBERS = 20_000  # of one record; of all records of a host 5,000 names are kept (`finding_store`)
MAX_VALUES = 100_000  # of one item of a record, as JSON
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MS_PER_S = 1000
_MOST_MS = 4_102_444_800_000  # the year 2100: later times are not plausible
_MOST_STEP = 2**63
_NO_NUMBERS = {"NaN", "Infinity", "-Infinity"}  # values written as text, as JSON has no such numbers
_MAX_TEXT_BYTES = 64  # of a text that is parsed, as it may be one of these
_OF_THE_CALL = {"_step", "_timestamp"}  # kept of any call
_TOLD_CHARACTERS = 80  # of a name in a note


def split_records(piece: bytes, *, offset: int, max_record_bytes: int = MAX_RECORD_BYTES) -> Records:
    """Return the records of a piece of a file; a record that is cut off is left for the next piece.

    Args:
        piece: part of the file, beginning with its first byte, or at `next_offset` of the last piece.
        offset: where the piece begins in the file. The next piece may begin beyond this piece's end, past padding.
        max_record_bytes: longer records are skipped; includes the headers between a record's parts.
    """
    first = _behind_prefix(piece) if offset == 0 else 0
    is_lost = first is None
    place = begin = first or 0  # begin: offset of the record that is being read
    records: list[Record] = []
    parts: list[bytes] = []
    is_sound = True
    num_damaged = num_large = 0
    while not is_lost and (offset or place):
        room = BLOCK_BYTES - (offset + place) % BLOCK_BYTES
        if room < _HEADER.size:  # the rest of the block is filled with zeros, which may not be written yet
            place += room
            begin = begin if parts else place
            continue
        if place + _HEADER.size > len(piece):
            break
        total, length, kind = _HEADER.unpack_from(piece, place)
        end = place + _HEADER.size + length
        is_lost = not _FULL <= kind <= _LAST or length > room - _HEADER.size
        if parts and end - begin > max_record_bytes:
            num_large += 1
            parts, begin = [], place  # the record's remaining parts are skipped, as parts without a first part
        if is_lost or end > len(piece):
            break
        data, at, place = piece[place + _HEADER.size : end], place, end
        if kind in (_FULL, _FIRST):
            num_damaged += bool(parts)  # the previous record has no end
            parts, is_sound, begin = [], True, at
        elif not parts:
            begin = place
            continue
        parts.append(data)
        is_sound &= zlib.crc32(data, zlib.crc32(bytes((kind,)))) == total
        if kind in (_FULL, _LAST):
            if is_sound:
                records.append(Record(offset=offset + begin, data=b"".join(parts)))
            num_damaged += not is_sound
            parts, begin = [], place
    return Records(
        records=tuple(records),
        next_offset=offset + begin,
        num_damaged=num_damaged,
        num_large=num_large,
        is_lost=is_lost,
    )


def _behind_prefix(piece: bytes) -> int | None:
    """Return the offset of the first record; 0 if the header is incomplete, None for another file format or version."""
    if not piece.startswith(PREFIX[: len(piece)]):
        return None
    return len(PREFIX) if len(piece) >= len(PREFIX) else 0


def findings_of(
    record: bytes, *, offset: int, file: str, on_note: Callable[[str], None] = lambda note: None
) -> list[Finding]:
    """Return the numbers of one call of `wandb.log`; empty for any other record.

    Args:
        record: its bytes.
        offset: where the record begins in the file.
        file: path of the file.
        on_note: called with a sentence about each value that is too large; the call's other values are returned.
    Raises: Malformed.
    """
    found: list[Finding] = []
    for number, _, value in fields_of(record):
        if number == 2:
            found += _of_history(as_bytes(value), offset=offset, file=file, on_note=on_note)
    return found


def _of_history(message: bytes, *, offset: int, file: str, on_note: Callable[[str], None]) -> list[Finding]:
    numbers: dict[str, float] = {}
    step = None
    for number, _, value in fields_of(message):
        if number == 1:
            told = _item(as_bytes(value), on_note)
            if len(numbers) + len(told) <= MAX_NUMBERS or told.keys() <= _OF_THE_CALL:
                numbers |= told
            else:
                on_note(f"a call has more than {MAX_NUMBERS} numbers: {_told(next(iter(told)))} is left out")
        elif number == 2:
            step = next((as_signed(one) for field, _, one in fields_of(as_bytes(value)) if field == 1), 0)
    if step is None and -_MOST_STEP < numbers.get("_step", math.nan) < _MOST_STEP:  # false for NaN, too
        step = int(numbers["_step"])
    at_ms = numbers.get("_timestamp", math.nan) * _MS_PER_S
    moment = int(at_ms) if 0 <= at_ms < _MOST_MS else 0
    return [
        Finding(
            name=name,
            at_ms=moment,
            step=step,
            value=value if math.isfinite(value) else None,
            file=file,
            offset=offset,
        )
        for name, value in numbers.items()
        if not name.startswith("_") and is_name(name)
    ]


def _item(message: bytes, on_note: Callable[[str], None]) -> dict[str, float]:
    """Return the numbers of a HistoryItem by name, `MAX_NUMBERS` + 1 at most; other values are left out.

    Raises: Malformed.
    """
    words, document = [], b""
    for number, _, value in fields_of(message):
        if number in (1, 2):  # key, or the components of nested_key
            words.append(as_text(value))
        elif number == 16:
            document = as_bytes(value)
    if document[:1] == b"[" or (document[:1] == b'"' and len(document) > _MAX_TEXT_BYTES):
        return {}  # neither a list nor a text has numbers with names, however long it is
    name = ".".join(filter(None, words))
    if may_have_more_values(document, MAX_VALUES):
        on_note(f"an item has more than {MAX_VALUES} values: {_told(name)} is left out")
        return {}
    try:
        told = json.loads(as_text(document))
    except (ValueError, RecursionError):
        return {}
    return dict(islice(_numbers(name, told, depth=0), MAX_NUMBERS + 1))


def _told(name: str) -> str:
    return repr(name[:_TOLD_CHARACTERS])


def _numbers(name: str, told: Any, *, depth: int) -> Iterator[tuple[str, float]]:
    if len(name) > MAX_NAME_CHARACTERS:
        return  # checked here, before the name becomes a prefix of each nested value's name
    if isinstance(told, dict) and "_type" not in told and depth < MAX_DEPTH:
        for key, inner in told.items():
            yield from _numbers(f"{name}.{key}", inner, depth=depth + 1)
    elif isinstance(told, str) and told in _NO_NUMBERS:
        yield name, math.nan
    elif isinstance(told, int | float) and not isinstance(told, bool):
        try:
            yield name, float(told)
        except OverflowError:
            yield name, math.inf
