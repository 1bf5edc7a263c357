"""Writes negotiations and operations in Chrome's trace format to the file that HOROVOD_TIMELINE names.

Each tensor has a row: NEGOTIATE_ALLREDUCE from its submission on this rank until all ranks have submitted it, then
ALLREDUCE. The file is a whole JSON document once `close` has returned. A full disk ends the timeline, but not the
training.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import stat
import threading
import time
from typing import Any, TextIO

from clary.train.horovod.requests import Verb

_US = 1e6  # per second
# Opening does not block on a pipe without a reader, and follows no link.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FILE_MODE = 0o644
_LOG = logging.getLogger("horovod")


class Timeline:
    """The timeline file of rank 0. One thread records events; any thread may call `close` at the same time.

    Args:
        marks_cycles: whether each round gets a mark.

    Raises: OSError if the file cannot be written, or is a link, a pipe or a device, which stays unchanged.
    """

    def __init__(self, path: str, *, marks_cycles: bool) -> None:
        self.path = path
        self._marks_cycles = marks_cycles
        self._start = time.monotonic()
        self._writing = threading.Lock()
        self._file: TextIO | None = _open_new(path)
        self._rows: dict[str, int] = {}
        self._separator = "[\n"
        self._write(
            {
                "name": "process_name",
                "ph": "M",
                "pid": 0,
                "args": {"start_time_since_epoch_in_micros": int(time.time() * _US)},
            }
        )

    def negotiated(self, name: str, verb: Verb, since: float) -> None:
        """Record that all ranks have submitted a tensor.

        Args:
            name: name of the tensor, whose row gets the event.
            verb: the operation that was submitted.
            since: time.monotonic() when this rank submitted it.
        """
        self._span(name, f"NEGOTIATE_{verb.name}", since, time.monotonic())

    def ran(self, name: str, verb: Verb, since: float) -> None:
        """Record that an operation has ended now.

        Args:
            name: name of the tensor, whose row gets the event.
            verb: the operation.
            since: time.monotonic() when it began.
        """
        self._span(name, verb.name, since, time.monotonic())

    def round_begins(self) -> None:
        """Mark the start of a round, if `marks_cycles`."""
        if self._marks_cycles:
            self._write({"name": "CYCLE_START", "ph": "i", "s": "g", "pid": 0, "ts": self._now(time.monotonic())})

    def close(self) -> None:
        """End the document. A second call does nothing."""
        with self._writing:
            file, self._file = self._file, None
            if file is not None:
                try:
                    file.write("\n]\n")
                    file.close()
                except OSError as error:
                    self._give_up(file, error)

    def _span(self, name: str, what: str, since: float, until: float) -> None:
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = len(self._rows) + 1
            self._write({"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": name}})
        begin = self._now(since)
        self._write({"name": what, "ph": "X", "pid": 0, "tid": row, "ts": begin, "dur": self._now(until) - begin})

    def _now(self, moment: float) -> float:
        return round((moment - self._start) * _US, 1)

    def _write(self, event: dict[str, Any]) -> None:
        with self._writing:
            file = self._file
            if file is None:
                return
            try:
                file.write(self._separator + json.dumps(event))
            except OSError as error:
                self._file = None
                self._give_up(file, error)
            else:
                self._separator = ",\n"

    def _give_up(self, file: TextIO, error: OSError) -> None:
        _LOG.warning("the timeline %s ends here, training goes on: %s", self.path, error.strerror or error)
        with contextlib.suppress(OSError):  # `close` flushes again, and may fail again
            file.close()


def _open_new(path: str) -> TextIO:
    """Open a regular file for a new timeline, and truncate it. Raises: OSError."""
    try:
        descriptor = os.open(path, _FLAGS, _FILE_MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a timeline is not written through a link", path) from error
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "a timeline is a regular file, and this is a pipe or socket", path) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EPERM, "a timeline is a regular file, and this is another kind of file", path)
        os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return open(descriptor, "w", encoding="utf-8")
