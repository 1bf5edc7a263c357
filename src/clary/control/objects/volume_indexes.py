"""Indexes of the embedded store's volumes that do not fit their data, as after a power cut.

Where: `seaweed` calls it before it starts a process. A volume is a file of data, NAME.dat, and one with the place of
each object in it, NAME.idx. SeaweedFS never calls fsync, so the end of either may be lost or zero. If an index has a
part of an entry, or entries of zeros, SeaweedFS shows no object of the volume at all. An object without an entry is not
shown either. So an index that does not fit is set aside, and a new index is written. It has the whole entries of the
old index up to the first damaged entry, and entries of the objects that follow in the data. Without a whole entry no
index is written, and SeaweedFS makes one from all the data.

A hole of zeros in the data ends a search for objects, so the whole entries of the old index count more than the data.
Zeros or a part of an object at the end of the data are no object: a new index would not have it either.

An entry, big-endian: key (8 bytes), place (4 bytes, then the highest one) in units of 8 bytes, size (4 bytes; -1 for a
deletion). An object in the data: a header of 16 bytes (4 others, key, size), `size` bytes, a checksum of 4, a time of
8, and 1 to 8 bytes up to a multiple of 8.
Source: SeaweedFS, build with volumes above 32 GB: weed/storage/idx, weed/storage/needle; observed with files of 4.48.
"""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path
from typing import BinaryIO

from clary.base.whole_files import replace_durably

DATA_SUFFIX, INDEX_SUFFIX, SORTED_SUFFIX = ".dat", ".idx", ".sdx"
DAMAGED_SUFFIX = ".damaged"
_DELETED = -1  # size in the entry of a deletion, whose record in the data has no content
_ENTRY = struct.Struct(">QIBi")
_HEADER = struct.Struct(">IQi")
_SUPER_BLOCK_BYTES = 8  # of a volume without objects
_UNIT_BYTES = 8
_AROUND_BYTES = _HEADER.size + 4 + 8  # header, checksum and time of an object
_CHUNK_BYTES = 1 << 20

_log = logging.getLogger(__name__)


def mend_damaged(folder: Path) -> list[Path]:
    """Replace the indexes that do not fit their data; return their paths. No store may run on the folder.

    The damaged index is kept as NAME.idx.damaged, in place of an earlier one.

    An index that cannot be read or renamed is left to the store, which serves its other volumes.

    Args:
        folder: the store's data folder, which may be missing.
    """
    found = []
    for index in sorted(folder.glob(f"*{INDEX_SUFFIX}")):
        data = index.with_suffix(DATA_SUFFIX)
        try:
            if not data.is_file() or not (why := why_damaged(index, data)):
                continue
            kept = _whole_entries(index, data)
            added = _following_entries(data, _end_of_all(kept)) if kept else b""
            index.with_suffix(SORTED_SUFFIX).unlink(missing_ok=True)  # made from the index
            index.replace(index.with_name(index.name + DAMAGED_SUFFIX))
            if kept:
                replace_durably(index, kept + added)
        except OSError as error:
            _log.warning("object store: %s was not compared with its data: %s", index, error.strerror)
            continue
        counts = f"{len(kept) // _ENTRY.size} entries are kept, {len(added) // _ENTRY.size} made anew"
        done = f"{counts if kept else 'it is made anew'} from {data.name}"
        _log.warning("object store: %s %s, as after a power cut; %s", index, why, done)
        found.append(index)
    return found


def why_damaged(index: Path, data: Path) -> str:
    """Return why an index does not fit its data, as a verb with its object; an empty string if it does.

    An index that names more than the data has is not damaged: the store opens such a volume for reading. If its last
    entry has no place, as of a deletion during a compaction, the end of its objects is unknown, and nothing lacks.

    Raises: OSError.
    """
    data_bytes = data.stat().st_size
    with index.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size % _ENTRY.size:
            return "ends in a part of an entry"
        if not size:
            return "is empty" if data_bytes > _SUPER_BLOCK_BYTES else ""
        before = b""
        while chunk := file.read(_CHUNK_BYTES):
            if bytes(_ENTRY.size) in before + chunk:
                return "has entries of zeros"
            before = chunk[-_ENTRY.size :]
        file.seek(size - _ENTRY.size)
        _, place, last_bytes = _unpacked(file.read(_ENTRY.size), 0)
    with data.open("rb") as file:
        follows = _header_of(file, _end_of(place, last_bytes), data_bytes) is not None
    return "lacks objects" if place and follows else ""


def _whole_entries(index: Path, data: Path) -> bytes:
    """Return the entries before the first damaged one; at their end each names the key and size of its object."""
    content = index.read_bytes()
    num_entries = len(content) // _ENTRY.size
    zero = bytes(_ENTRY.size)
    for number in range(num_entries):
        if content[number * _ENTRY.size : (number + 1) * _ENTRY.size] == zero:
            num_entries = number
            break
    with data.open("rb") as file:
        while num_entries:
            key, place, size = _unpacked(content, num_entries - 1)
            header = _header_of(file, place, os.fstat(file.fileno()).st_size)
            if not place or header in ((key, size), (key, size - _DELETED)):
                break
            num_entries -= 1  # a part of it is zero, or its object is lost
    return content[: num_entries * _ENTRY.size]


def _end_of_all(entries: bytes) -> int:
    """Return where the last object of some entries ends in the data."""
    found = (_unpacked(entries, number) for number in range(len(entries) // _ENTRY.size))
    return max(_end_of(place, size) for _, place, size in found)


def _following_entries(data: Path, place: int) -> bytes:
    """Return entries of the whole objects that lie one after the other from a place of the data on."""
    found = []
    data_bytes = data.stat().st_size
    with data.open("rb") as file:
        while (header := _header_of(file, place, data_bytes)) is not None:
            key, size = header
            units = place // _UNIT_BYTES
            found.append(_ENTRY.pack(key, units & 0xFFFFFFFF, units >> 32, size or _DELETED))
            place = _end_of(place, size)
    return b"".join(found)


def _unpacked(entries: bytes, number: int) -> tuple[int, int, int]:
    """Return key, place in bytes and size of an entry."""
    key, low, high, size = _ENTRY.unpack_from(entries, number * _ENTRY.size)
    return key, ((high << 32) + low) * _UNIT_BYTES, size


def _header_of(file: BinaryIO, place: int, data_bytes: int) -> tuple[int, int] | None:
    """Return key and size of the whole object at a place of the data; None without one."""
    file.seek(place)
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not any(header):
        return None
    _, key, size = _HEADER.unpack(header)
    return (key, size) if size >= 0 and _end_of(place, size) <= data_bytes else None


def _end_of(place: int, size: int) -> int:
    """Return where an object of the data ends; all in bytes."""
    end = place + _AROUND_BYTES + max(0, size)
    return end + _UNIT_BYTES - end % _UNIT_BYTES
