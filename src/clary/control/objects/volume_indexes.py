"""Indexes of the embedded store's volumes that do not fit their data, as after a power cut.

Where: `seaweed` calls it before it starts a process. A volume is a file of data, NAME.dat, and one with the place of
each object in it, NAME.idx. SeaweedFS never calls fsync, so the end of either may be lost or zero. Of a volume whose
index has a part of an entry, or entries of zeros, it shows no object at all; and no object whose entry is missing. But
it makes an index anew from the data if there is none. So an index that does not fit is set aside.

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

DATA_SUFFIX, INDEX_SUFFIX, SORTED_SUFFIX = ".dat", ".idx", ".sdx"
DAMAGED_SUFFIX = ".damaged"
_ENTRY = struct.Struct(">QIBi")
_HEADER = struct.Struct(">IQi")
_SUPER_BLOCK_BYTES = 8  # of a volume without objects
_UNIT_BYTES = 8
_AROUND_BYTES = _HEADER.size + 4 + 8  # header, checksum and time of an object
_CHUNK_BYTES = 1 << 20

_log = logging.getLogger(__name__)


def set_aside_damaged(folder: Path) -> list[Path]:
    """Rename the indexes that do not fit their data; return their former paths. No store may run on the folder.

    An index that was set aside before is replaced.

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
            index.with_suffix(SORTED_SUFFIX).unlink(missing_ok=True)  # made from the index
            index.replace(index.with_name(index.name + DAMAGED_SUFFIX))
        except OSError as error:
            _log.warning("object store: %s was not compared with its data: %s", index, error.strerror)
            continue
        _log.warning("object store: %s %s, as after a power cut; it is made anew from %s", index, why, data.name)
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
        _, low, high, last_bytes = _ENTRY.unpack(file.read(_ENTRY.size))
    place = ((high << 32) + low) * _UNIT_BYTES
    return "lacks objects" if place and _has_object(data, _end_of(place, last_bytes), data_bytes) else ""


def _has_object(data: Path, place: int, data_bytes: int) -> bool:
    """Whether a whole object lies at a place of the data."""
    with data.open("rb") as file:
        file.seek(place)
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not any(header):
        return False
    size = _HEADER.unpack(header)[2]
    return size >= 0 and _end_of(place, size) <= data_bytes


def _end_of(place: int, size: int) -> int:
    """Return where an object of the data ends; all in bytes."""
    end = place + _AROUND_BYTES + max(0, size)
    return end + _UNIT_BYTES - end % _UNIT_BYTES
