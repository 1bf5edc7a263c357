"""Records of an event file: length, checksum of the length, record, checksum of the record. Pure.

Source: the TFRecord format, "Details about the file format" in TensorFlow's guide on TFRecord: uint64 length, uint32
masked CRC-32C of the length, the bytes, uint32 masked CRC-32C of the bytes; all little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from clary.agent.training.checksums import masked_crc32c

MAX_RECORD_BYTES = 8 * 1024 * 1024  # longer records are skipped: they hold pictures too large to show
MAX_SUMMED_BYTES = 64 * 1024  # the checksums of longer records are not checked: a check takes too long
HEADER_BYTES = 12
FOOTER_BYTES = 4
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_LENGTH_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record."""

    offset: int  # offset of the record's length in the file
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Records:
    """The records in a piece of a file.

    Attributes:
        records: whole and undamaged, in order.
        next_offset: offset at which to read on.
        num_damaged: records with a wrong checksum; they are left out.
        num_large: records that were skipped because of their size.
        is_lost: whether the length itself is damaged, so that no later record can be found.
    """

    records: tuple[Record, ...]
    next_offset: int
    num_damaged: int = 0
    num_large: int = 0
    is_lost: bool = False


def split_records(piece: bytes, *, offset: int, max_record_bytes: int = MAX_RECORD_BYTES) -> Records:
    """Return the records of a piece of a file; a record that is cut off is left for the next piece.

    Args:
        piece: part of the file, beginning with a record.
        offset: where the piece begins in the file. The next piece may begin beyond this piece's end, past a large
            record.
        max_record_bytes: longer records are skipped.
    """
    records: list[Record] = []
    num_damaged = num_large = place = 0
    while place + HEADER_BYTES <= len(piece):
        length, length_sum = _HEADER.unpack_from(piece, place)
        if masked_crc32c(piece[place : place + _LENGTH_BYTES]) != length_sum:
            return Records(
                records=tuple(records),
                next_offset=offset + place,
                num_damaged=num_damaged,
                num_large=num_large,
                is_lost=True,
            )
        end = place + HEADER_BYTES + length
        if length > max_record_bytes:
            num_large += 1
        elif end + FOOTER_BYTES > len(piece):
            break
        else:
            data = piece[place + HEADER_BYTES : end]
            if length <= MAX_SUMMED_BYTES and masked_crc32c(data) != _FOOTER.unpack_from(piece, end)[0]:
                num_damaged += 1
            else:
                records.append(Record(offset=offset + place, data=data))
        place = end + FOOTER_BYTES
    return Records(records=tuple(records), next_offset=offset + place, num_damaged=num_damaged, num_large=num_large)
