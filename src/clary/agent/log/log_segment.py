"""One segment of the spool: blocks of log lines in a file, or in memory if the disk accepts no file.

Where: `log_spool` appends to its last segment and reads from all segments. `contract.log_blocks` defines the format of
blocks in a file.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from clary.base.errors import AgentError
from clary.contract.agent_protocol import LogBlock
from clary.contract.log_blocks import parse_blocks

if TYPE_CHECKING:
    from typing_extensions import Self

_READ_BYTES = 1024 * 1024


class Segment:
    """Blocks from line `first_sequence` on; in memory if there is no descriptor."""

    def __init__(self, path: Path, descriptor: int | None, *, first_sequence: int) -> None:
        self.path = path
        self.first_sequence = first_sequence
        self.num_lines = 0
        self.size_bytes = 0
        self._descriptor = descriptor
        self._memory = bytearray()

    @classmethod
    def create(cls, path: Path, *, first_sequence: int) -> Self:
        """Create a segment with an empty file. Raises: OSError."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        return cls(path, descriptor, first_sequence=first_sequence)

    @property
    def end_sequence(self) -> int:
        """The number after the last line's number."""
        return self.first_sequence + self.num_lines

    @property
    def is_in_memory(self) -> bool:
        """Whether the segment has no file."""
        return self._descriptor is None

    def append(self, block: bytes, num_lines: int) -> None:
        """Append a block.

        Raises: OSError; then no part of the block remains.
        """
        if self._descriptor is None:
            self._memory += block
        else:
            written = 0
            view = memoryview(block)
            try:
                while written < len(block):
                    written += os.pwrite(self._descriptor, view[written:], self.size_bytes + written)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self.size_bytes)
                raise
        self.size_bytes += len(block)
        self.num_lines += num_lines

    def read(self, offset: int, size_bytes: int) -> tuple[list[LogBlock], int]:
        """Return one or more blocks from `offset` on, and the offset after them.

        Args:
            offset: start of a block.
            size_bytes: size of the segment known to the caller; later blocks are not read.

        Raises: AgentError if the disk returns fewer bytes than were written.
        """
        wanted = min(_READ_BYTES, size_bytes - offset)
        blocks, used = parse_blocks(self._bytes_at(offset, wanted))
        if not blocks and wanted < size_bytes - offset:
            blocks, used = parse_blocks(self._bytes_at(offset, size_bytes - offset))
        if not blocks:
            raise AgentError(f"{self.path}: expected {size_bytes} bytes of log lines, the disk gives back fewer")
        return blocks, offset + used

    def rename(self, path: Path) -> None:
        """Rename the file; if the disk refuses, it loses its name, and is missing for a reader after the agent's death.

        It must not keep its old name, which a later segment may get.
        """
        if self._descriptor is not None:
            try:
                self.path.rename(path)
            except OSError:
                with contextlib.suppress(OSError):
                    self.path.unlink()
        self.path = path

    def close(self) -> None:
        """Close the file and keep it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def remove(self) -> None:
        """Close and delete the file."""
        if self._descriptor is not None:
            self.close()
            self.path.unlink(missing_ok=True)

    def _bytes_at(self, offset: int, count: int) -> bytes:
        if self._descriptor is None:
            return bytes(self._memory[offset : offset + count])
        return os.pread(self._descriptor, count, offset)
