"""A file that holds tensors until they are needed again, written and read in the background.

Where: `offloading` puts tensors here.

[Note: one file without a name] All tensors of a process share one file. Its name is removed once it is open, so the
kernel frees the file when the process ends. The calling thread reserves room for a tensor, so a full disk raises an
error there and not in a background thread.

[Note: threads] One thread writes and another reads, so that reads for backward do not queue behind writes of forward. A
tensor stays in memory until it is written; the number of unwritten bytes is bounded, and a caller that would exceed the
bound waits. If a tensor is needed before its write starts, the write is cancelled.

Writes go through the page cache, so the kernel may keep them in unused memory.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from clary.train.parallel.errors import ParallelError
from clary.train.parallel.memory.extents import Extent, Extents

WAIT_LIMIT_S = 300.0  # timeout of one write or read
PIECE_BYTES = 64 << 20  # maximum number of bytes per system call


class SpillError(ParallelError):
    """A spilled tensor could not be written or read; training cannot continue."""


class Spill:
    """One file, its free and allocated extents, and its two threads.

    Args:
        folder: the folder of the file, on the disk to use.
        max_waiting_bytes: limit of unwritten bytes in memory.

    Raises: SpillError if no file can be made in the folder.
    """

    def __init__(self, folder: Path, *, max_waiting_bytes: int) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file, path = tempfile.mkstemp(prefix="clary-activations-", dir=folder)
            os.unlink(path)
        except OSError as error:
            raise SpillError(f"activation offloading: no file can be made in {folder}: {error.strerror}") from error
        self.max_waiting_bytes = max_waiting_bytes
        self._extents = Extents()
        self._length = 0  # bytes allocated on the disk
        self._given_back: deque[Extent] = deque()  # finalizers append to it in any thread, under any lock
        self._waiting_bytes = 0
        self._has_room = threading.Condition()
        self._writer = ThreadPoolExecutor(1, "clary-spill-write")
        self._reader = ThreadPoolExecutor(1, "clary-spill-read")

    def reserve(self, size: int) -> Extent:
        """Allocate an extent of the file for `size` bytes.

        Raises: SpillError if the disk is full.
        """
        with self._has_room:
            while self._given_back:
                self._extents.give_back(self._given_back.popleft())
            extent = self._extents.take(size)
            if extent.end > self._length:
                try:
                    os.posix_fallocate(self._file, self._length, extent.end - self._length)
                except OSError as error:
                    self._extents.give_back(extent)
                    raise SpillError(
                        f"activation offloading: {self.folder} has no room for {size} more bytes of activations; "
                        f"{self._length} bytes are reserved ({error.strerror}). Free some space, offload to another "
                        "folder, or keep fewer microbatches alive (active_microbatches)"
                    ) from error
                self._length = extent.end
        return extent

    def give_back(self, extent: Extent) -> None:
        """Free an extent; thread-safe, also in finalizers."""
        self._given_back.append(extent)

    def write(
        self, extent: Extent, address: int, size: int, *, owner: Any, ready: Callable[[], None] | None = None
    ) -> Future[None]:
        """Write memory into the file; wait while `max_waiting_bytes` would be exceeded.

        Args:
            owner: owner of the memory, kept alive until the write ends.
            ready: waits until the memory holds the data to write.

        Raises: SpillError if the disk does not keep up within the limit.
        """
        with self._has_room:
            # If no other tensor waits, a tensor of any size is accepted.
            if not self._has_room.wait_for(
                lambda: not self._waiting_bytes or self._waiting_bytes + size <= self.max_waiting_bytes, WAIT_LIMIT_S
            ):
                raise SpillError(
                    f"activation offloading: {self._waiting_bytes} bytes have been waiting {WAIT_LIMIT_S:g} s to be "
                    f"written to {self.folder}: the disk does not answer"
                )
            self._waiting_bytes += size
        done = self._writer.submit(self._write, extent, address, size, owner, ready)
        done.add_done_callback(lambda _: self._wrote(size))  # also called for a cancelled write
        return done

    def read(self, extent: Extent, address: int, size: int, *, owner: Any) -> Future[None]:
        """Read from the file into memory, whose owner is kept alive until the read ends.

        Args:
            extent: extent to read.
            address: address of the memory.
            size: bytes to read, at most the extent's size.

        Returns: a future; its `result` raises SpillError if the file cannot be read.
        """
        return self._reader.submit(self._read, extent, address, size, owner)

    def close(self) -> None:
        """End the threads after their current work, and free the file."""
        for pool in (self._writer, self._reader):
            pool.shutdown(cancel_futures=True)
        os.close(self._file)

    def _wrote(self, size: int) -> None:
        with self._has_room:
            self._waiting_bytes -= size
            self._has_room.notify_all()

    def _write(self, extent: Extent, address: int, size: int, _: Any, ready: Callable[[], None] | None) -> None:
        if ready is not None:
            ready()
        memory = _memory(address, size)
        done = 0
        while done < size:
            try:
                done += os.pwrite(self._file, memory[done : done + PIECE_BYTES], extent.offset + done)
            except OSError as error:
                raise SpillError(
                    f"activation offloading: {size} bytes could not be written to {self.folder}: {error.strerror}"
                ) from error

    def _read(self, extent: Extent, address: int, size: int, _: Any) -> None:
        memory = _memory(address, size)
        done = 0
        while done < size:
            try:
                count = os.preadv(self._file, [memory[done : done + PIECE_BYTES]], extent.offset + done)
            except OSError as error:
                raise SpillError(
                    f"activation offloading: {size} bytes could not be read from {self.folder}: {error.strerror}"
                ) from error
            if count == 0:
                raise SpillError(f"activation offloading: the file in {self.folder} ends {size - done} bytes early")
            done += count


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")
