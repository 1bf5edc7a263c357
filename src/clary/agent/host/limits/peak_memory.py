"""Peak memory of a cgroup, counted separately for each program of a host.

Where: `cgroups.HostCgroup` reads it. Version 1 has one counter for all readers, which can be reset. Version 2 has one
counter per open file since Linux 6.12; before, it has one counter that cannot be reset.
Source: kernel Documentation/admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst ("memory.peak").
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

_FILES = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}
_MAX_BYTES = 64  # upper limit for the length of the number in the file


class PeakMemory:
    """The counter of one cgroup.

    Args:
        folder: of the cgroup.
        version: cgroup version of the folder.
        read: returns the text of a control file.
    """

    def __init__(self, folder: str, *, version: int, read: Callable[[str], str]) -> None:
        self._path = f"{folder}/{_FILES[version]}"
        self._has_own = version != 1
        self._read = read
        self._descriptor: int | None = None  # open file whose own counter is read
        self._is_lost = False

    def bytes(self) -> int | None:
        """Return the peak since the creation or the last `set_back`; None if unknown."""
        with contextlib.suppress(OSError, ValueError):
            if self._descriptor is not None:
                return int(os.pread(self._descriptor, _MAX_BYTES, 0))
            if not self._is_lost:
                return int(self._read(self._path))
        return None

    def set_back(self) -> None:
        """Reset the peak to the current use; if the kernel cannot do this, `bytes` returns None from now on."""
        self.close()
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._is_lost = True
            return
        try:
            os.write(descriptor, b"0\n")
        except OSError:
            os.close(descriptor)
            self._is_lost = True
            return
        if self._has_own:
            self._descriptor = descriptor
        else:
            os.close(descriptor)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
