"""A cache of parts of objects on this machine's disk."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path


class ObjectBlocks:
    """Blocks by key; the least recently used block is dropped first.

    The folder is removed with the object, at the latest when the process exits.

    Args:
        max_bytes: maximum total size of all blocks in bytes.
        place: parent of the new folder; None for the temporary directory.

    Raises: OSError.
    """

    def __init__(self, max_bytes: int, place: Path | None = None) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._kept: OrderedDict[Hashable, tuple[Path, int]] = OrderedDict()
        self._number = 0
        self.folder = Path(tempfile.mkdtemp(prefix="clary-trial-", dir=place))
        self._end = weakref.finalize(self, shutil.rmtree, self.folder, True)

    def get(self, key: Hashable) -> bytes | None:
        """Return a block; None if it is missing or no longer intact."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        path, size = self._kept[key]
        try:
            data = path.read_bytes()
        except OSError:
            data = b""
        if len(data) == size:
            return data
        self._drop(key)
        return None

    def put(self, key: Hashable, data: bytes) -> None:
        """Keep a block, unless it exceeds the bound or the disk is full."""
        if key in self._kept:
            self._drop(key)
        if len(data) > self._max_bytes:
            return
        while self.num_bytes + len(data) > self._max_bytes:
            self._drop(next(iter(self._kept)))
        self._number += 1
        path = self.folder / str(self._number)
        try:
            path.write_bytes(data)
        except OSError:
            path.unlink(missing_ok=True)
            return
        self._kept[key] = path, len(data)
        self.num_bytes += len(data)

    def _drop(self, key: Hashable) -> None:
        path, size = self._kept.pop(key)
        self.num_bytes -= size
        path.unlink(missing_ok=True)
