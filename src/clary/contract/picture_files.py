"""Type and size in pixels of a picture, read from the first bytes of its file. Pure.

Where: agents send only pictures that pass this check; the service repeats it before it stores a picture, and before it
returns one. A file of 256 KiB may claim a width for which a browser would need gigabytes: such files are refused.
Source: PNG (W3C), 5.2 and 11.2.1; GIF89a, 17 to 26; JPEG: ITU-T T.81, B.1.1.3 and B.2.2.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAX_IMAGE_BYTES = 256 * 1024  # size of a picture that is kept
MAX_IMAGE_SIDE = 8_192  # pixels
MAX_IMAGE_PIXELS = 4 * 1024 * 1024  # 16 MiB in a browser

_PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_GIF_STARTS = (b"GIF87a", b"GIF89a")
_JPEG_START = b"\xff\xd8\xff"
_PNG_SIZE = struct.Struct(">II")
_GIF_SIZE = struct.Struct("<HH")
_GIF_PLACE = struct.Struct("<HHHH")  # left, top, width, height
_GIF_FLAGS, _GIF_HEADER_BYTES = 10, 13
_GIF_HAS_COLORS, _GIF_NUM_COLORS = 0x80, 0x07
_GIF_EXTENSION, _GIF_FRAME = 0x21, b","
_JPEG_LENGTH = struct.Struct(">H")
_JPEG_FRAME = struct.Struct(">HBHH")  # length, bits of a sample, height, width
_JPEG_FIRST_FRAME, _JPEG_LAST_FRAME = 0xC0, 0xCF
_JPEG_NO_FRAMES = (0xC4, 0xC8, 0xCC)  # markers of tables and extensions that lie within the range of frame markers
_JPEG_ALONE = (0x01, *range(0xD0, 0xD8))  # markers without a length
_JPEG_SCAN, _JPEG_END = 0xDA, 0xD9


@dataclass(frozen=True, kw_only=True)
class PictureFacts:
    """Type and size of a picture."""

    media_type: str
    width: int
    height: int


def picture_facts(data: bytes) -> PictureFacts | None:
    """Return type and size of a picture, or None if it is not a PNG, JPEG or GIF, or is too large to keep or show."""
    if len(data) > MAX_IMAGE_BYTES:
        return None
    facts = _png(data) or _gif(data) or _jpeg(data)
    if facts is None or not 0 < facts.width <= MAX_IMAGE_SIDE or not 0 < facts.height <= MAX_IMAGE_SIDE:
        return None
    return facts if facts.width * facts.height <= MAX_IMAGE_PIXELS else None


def _png(data: bytes) -> PictureFacts | None:
    if not data.startswith(_PNG_START) or len(data) < len(_PNG_START) + _PNG_SIZE.size:
        return None
    width, height = _PNG_SIZE.unpack_from(data, len(_PNG_START))
    return PictureFacts(media_type="image/png", width=width, height=height)


def _gif(data: bytes) -> PictureFacts | None:
    """Read the size that browsers show: the logical screen, enlarged to the extent of the first frame."""
    if not data.startswith(_GIF_STARTS) or len(data) < len(_GIF_STARTS[0]) + _GIF_SIZE.size:
        return None
    width, height = _GIF_SIZE.unpack_from(data, len(_GIF_STARTS[0]))
    place = _GIF_HEADER_BYTES
    if len(data) >= place and data[_GIF_FLAGS] & _GIF_HAS_COLORS:
        place += 3 << (data[_GIF_FLAGS] & _GIF_NUM_COLORS) + 1
    while place < len(data) and data[place] == _GIF_EXTENSION:
        place += 2
        while place < len(data) and data[place]:
            place += 1 + data[place]
        place += 1
    if data[place : place + 1] == _GIF_FRAME and place + 1 + _GIF_PLACE.size <= len(data):
        left, top, frame_width, frame_height = _GIF_PLACE.unpack_from(data, place + 1)
        width, height = max(width, left + frame_width), max(height, top + frame_height)
    return PictureFacts(media_type="image/gif", width=width, height=height)


def _jpeg(data: bytes) -> PictureFacts | None:
    """Walk from marker to marker until the frame's header; every step moves forward."""
    if not data.startswith(_JPEG_START):
        return None
    place = 2
    while place + 2 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # any number of these bytes may precede a marker
            place += 1
            continue
        place += 2
        if marker in _JPEG_ALONE:
            continue
        if marker in (_JPEG_SCAN, _JPEG_END) or place + _JPEG_LENGTH.size > len(data):
            return None
        if _JPEG_FIRST_FRAME <= marker <= _JPEG_LAST_FRAME and marker not in _JPEG_NO_FRAMES:
            if place + _JPEG_FRAME.size > len(data):
                return None
            _, _, height, width = _JPEG_FRAME.unpack_from(data, place)
            return PictureFacts(media_type="image/jpeg", width=width, height=height)
        place += max(2, _JPEG_LENGTH.unpack_from(data, place)[0])
    return None
