"""A minimal writer of W&B run logs, written from the format's description; it shares no code with the reader."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

from event_writing import block, varint

BLOCK = 32768
PREFIX = b":W&B" + struct.pack("<HB", 0xBEE1, 0)


def part(kind: int, data: bytes) -> bytes:
    return struct.pack("<IHB", zlib.crc32(bytes([kind]) + data), len(data), kind) + data


def log(*records: bytes) -> bytes:
    """Return a whole file, in which records are split at the ends of blocks."""
    written = PREFIX
    for data in records:
        kinds, is_first = b"", True
        while True:
            room = BLOCK - len(written) % BLOCK
            if room < 7:
                written += b"\0" * room
                continue
            piece, data = data[: room - 7], data[room - 7 :]
            kinds = (b"\1" if is_first else b"\4") if not data else (b"\2" if is_first else b"\3")
            written += part(kinds[0], piece)
            is_first = False
            if not data:
                break
    return written


def item(name: str, value: Any, *, is_nested: bool = False) -> bytes:
    key = b"".join(block(2, word.encode()) for word in name.split(".")) if is_nested else block(1, name.encode())
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return block(1, key + varint(16 << 3 | 2) + varint(len(text)) + text)


def history(step: int | None = None, *items: bytes, **values: Any) -> bytes:
    """Return a Record with the values of one call of `wandb.log`."""
    inner = b"".join(items) + b"".join(item(name, value) for name, value in values.items())
    if step is not None:
        inner += block(2, varint(1 << 3) + varint(step))
    return varint(1 << 3) + varint(7) + block(2, inner)


def other_record(size: int = 10) -> bytes:
    return varint(1 << 3) + varint(8) + block(17, b"x" * size)
