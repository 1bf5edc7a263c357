"""inotify: the kernel's events in folders, caused by processes of any namespace.

Source: inotify(7), linux/inotify.h.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
OVERFLOW, IGNORED, IS_FOLDER = 0x4000, 0x8000, 0x40000000
_ONLY_FOLDERS, _EXCLUDE_UNLINKED = 0x1000000, 0x4000000
_WANTED = MODIFY | ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE | _ONLY_FOLDERS | _EXCLUDE_UNLINKED
_HEADER = struct.Struct("iIII")
_READ_BYTES = 1 << 18


@dataclass(frozen=True)
class Event:
    """A change of a name in a watched folder."""

    watch: int  # number of the folder's watch; -1: the queue overflowed
    mask: int
    name: str


class Inotify:
    """One queue of events. Raises: OSError from every call, with errno."""

    def __init__(self) -> None:
        self.descriptor = _checked(_libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), "inotify_init1")

    def watch(self, folder: int) -> int:
        """Watch an open folder; return the watch's number, which is the same for the same folder."""
        path = f"/proc/self/fd/{folder}".encode()  # path of the descriptor: the name is not resolved again
        return _checked(_libc().inotify_add_watch(self.descriptor, path, _WANTED), "inotify_add_watch")

    def forget(self, watch: int) -> None:
        """Stop watching a folder."""
        _checked(_libc().inotify_rm_watch(self.descriptor, watch), "inotify_rm_watch")

    def read(self) -> Iterator[Event]:
        """Yield the waiting events until the queue is empty."""
        while True:
            try:
                data = os.read(self.descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            offset = 0
            while offset < len(data):
                watch, mask, _, length = _HEADER.unpack_from(data, offset)
                offset += _HEADER.size
                yield Event(watch, mask, os.fsdecode(data[offset : offset + length].rstrip(b"\0")))
                offset += length

    def close(self) -> None:
        """End all watches."""
        os.close(self.descriptor)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result
