"""RecordIO framing, as SageMaker's own readers expect it: one record per object.

Layout of a record, little endian: magic 0xced7230a, length of the payload, payload, zero bytes up to a multiple of 4.
The upper 3 bits of the length mark parts of a split record; SageMaker's readers support unsplit records only, so a
payload must be shorter than 2**29 bytes.
Source: MXNet "Create a Dataset Using RecordIO"; SageMaker developer guide, RecordWrapperType.
"""

from __future__ import annotations

import struct

MAGIC = 0xCED7230A
MAX_PAYLOAD_BYTES = (1 << 29) - 1
_ALIGNMENT = 4


def record_header(size_bytes: int) -> bytes:
    """Return the header of a payload of `size_bytes`, which must be at most MAX_PAYLOAD_BYTES."""
    assert 0 <= size_bytes <= MAX_PAYLOAD_BYTES, "callers refuse larger objects by name"
    return struct.pack("<II", MAGIC, size_bytes)


def record_padding(size_bytes: int) -> bytes:
    """Return the padding after a payload of `size_bytes`."""
    return bytes(-size_bytes % _ALIGNMENT)
