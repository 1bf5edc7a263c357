"""Format of log lines in the spool of a host: blocks in segment files, each named by the number of its first line.

Where: the agent's `log_spool` packs blocks and its `log_segment` writes and reads the files; the service reads the
files of a lost host's agent (`control.reconcile.log_salvage`). A block is a header (time in ms, rank or -1, size of the
text in bytes) and the text in UTF-8.
"""

from __future__ import annotations

import struct

from clary.contract.agent_protocol import LogBlock

SPOOL_FOLDER = "log-spool"  # below the host's work folder
SEGMENT_SUFFIX = ".lines"
_HEADER = struct.Struct("<qiI")
_NO_RANK = -1


def segment_name(first_sequence: int) -> str:
    """Return the name of the file whose first line has this number; names sort in the order of the numbers."""
    return f"{first_sequence:012d}{SEGMENT_SUFFIX}"


def pack_block(text: bytes, *, at_ms: int, rank: int | None) -> bytes:
    """Return the bytes of a block.

    Args:
        text: text of the block, in UTF-8.
        at_ms: milliseconds since 1970.
        rank: rank of the printing process; None for lines without a rank.
    """
    return _HEADER.pack(at_ms, _NO_RANK if rank is None else rank, len(text)) + text


def parse_blocks(data: bytes) -> tuple[list[LogBlock], int]:
    """Return the whole blocks at the start of `data` and their length in bytes.

    Raises: UnicodeDecodeError for a text that is not UTF-8.
    """
    blocks = []
    offset = 0
    while offset + _HEADER.size <= len(data):
        at_ms, rank, size_bytes = _HEADER.unpack_from(data, offset)
        start = offset + _HEADER.size
        if start + size_bytes > len(data):
            break
        offset = start + size_bytes
        text = str(memoryview(data)[start:offset], "utf-8")
        blocks.append(LogBlock(at_ms=at_ms, text=text, rank=None if rank == _NO_RANK else rank))
    return blocks, offset
