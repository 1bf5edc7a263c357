"""A minimal writer of event files, written from the format's description; it shares no code with the reader."""

from __future__ import annotations

import struct


def crc32c(data: bytes) -> int:
    """Compute CRC-32C bit by bit; the reader uses a table."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    value = crc32c(data)
    return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    parts = b""
    while number > 0x7F:
        parts += bytes([(number & 0x7F) | 0x80])
        number >>= 7
    return parts + bytes([number])


def block(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def double(field: int, number: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", number)


def event(*values: bytes, step: int = 0, at_s: float = 1_700_000_000.5) -> bytes:
    summary = b"".join(block(1, value) for value in values)
    return double(1, at_s) + varint(2 << 3) + varint(step) + block(5, summary)


def tag(name: str) -> bytes:
    return block(1, name.encode())


def scalar(name: str, number: float) -> bytes:
    return tag(name) + varint(2 << 3 | 5) + struct.pack("<f", number)


def plugin(name: str) -> bytes:
    return block(9, block(1, block(1, name.encode())))


def tensor(form: int, content: bytes) -> bytes:
    return block(8, varint(1 << 3) + varint(form) + block(4, content))


def histogram(name: str, least: float, buckets: list[tuple[float, float]]) -> bytes:
    limits = struct.pack(f"<{len(buckets)}d", *(limit for limit, _ in buckets))
    counts = struct.pack(f"<{len(buckets)}d", *(count for _, count in buckets))
    return tag(name) + block(5, double(1, least) + block(6, limits) + block(7, counts))


def image(name: str, data: bytes) -> bytes:
    return tag(name) + block(4, varint(1 << 3) + varint(2) + block(4, data))


FILE_VERSION = double(1, 1_700_000_000.0) + block(3, b"brain.Event:2")


def png(width: int, height: int) -> bytes:
    """Return the beginning of a PNG file, up to its size; the readers under test parse no more."""
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0) + b"rest"
