"""The tensors of a job of several hosts, read on its first host.

This host's tensors are in a local folder. The other hosts copy their tensors to S3 while they run, some seconds after
writing, and this module reads them there. A file that is in both is read from the folder.

[Note: one look] In each scan for new files, a trial lists collections, then end marks, then steps, so that it has seen
every step once all hosts have ended. Therefore one scan lists either all folders below the prefix or none. End marks
found there count only from the next scan on, and only if the scan that found them also listed the steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from clary.train.debugger.errors import StoreError
from clary.train.debugger.files import COLLECTIONS, END_OF_JOB, ENDED, HOST_FILE, Files, LocalFiles

LATE_S = 40.0  # longest wait for other hosts after this host's end
AWAY_S = 300.0  # longest wait for an unreachable store when an object is read
_PAUSE_S = 1.0  # seconds between attempts
_Read = TypeVar("_Read")
_log = logging.getLogger("clary.debugger")


class HostsFiles:
    """A local folder, and a prefix of S3 to which all hosts copy their tensors.

    Args:
        near: this host's folder.
        far: the prefix; None if this host cannot read it, and then this host's end is the training's end.
        own_end: name, below `ended`, of the mark by which this host's agent reports the end of this host's program.
        late_s: longest wait for other hosts after this host's end; then the trial ends without them.
    """

    def __init__(
        self,
        near: LocalFiles,
        far: Files | None,
        *,
        own_end: str,
        late_s: float = LATE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_s = near.interval_s
        self.is_late = False  # whether the trial has ended without all hosts
        self._near, self._far, self._own_end = near, far, own_end
        self._late_s, self._clock = late_s, clock
        self._ended_at_s: float | None = None  # end of this host's program
        self._far_listings: dict[str, dict[str, str]] = {}
        self._far_ended: dict[str, str] = {}  # end marks of the previous look
        self._is_looking_far = self._has_failed = self._was_told = False
        self._next_look_s = 0.0

    def __str__(self) -> str:
        return f"{self._near}" if self._far is None else f"{self._near} and {self._far}"

    def listing(self, folder: str, after: str = "") -> dict[str, str]:
        """Return a folder's names from `after` on; local files have precedence. Raises: OSError for local files."""
        if folder == COLLECTIONS:
            self._begin_look()
        near = self._near.listing(folder, after)
        far = self._list_far(folder, after)
        if folder == ENDED:
            far = self._far_ended
        elif not folder:
            far.pop(END_OF_JOB, None)  # left by an earlier job, since a job of several hosts has no such mark
            if self._has_waited():
                near[END_OF_JOB] = ""
        return dict(sorted({**far, **near}.items()))

    def size(self, name: str) -> int:
        """Return a file's length. Raises: OSError, such as FileNotFoundError."""
        try:
            return self._near.size(name)
        except FileNotFoundError:
            if self._far is None:
                raise
            far = self._far
        return self._patiently(lambda: far.size(name))

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return bytes of a file.

        Files of this host come from its disk, other files from the store, with retries while it is unreachable.

        Args: as `Files.read`.
        Raises: OSError.
        """
        try:
            return self._near.read(name, start, length)
        except FileNotFoundError:
            if self._far is None:
                raise
            far = self._far
        return self._patiently(lambda: far.read(name, start, length))

    def prepare(self, names: Sequence[str]) -> None:
        """Prefetch the beginnings of files that are only in the store."""
        if self._far is not None:
            self._far.prepare([name for name in names if not self._near.has(name)])

    def _patiently(self, read: Callable[[], _Read]) -> _Read:
        """Read from the store, with retries while it is unreachable, for example during a restart of the service."""
        deadline_s = self._clock() + AWAY_S
        while True:
            try:
                return read()
            except StoreError:
                if self._clock() >= deadline_s:
                    raise
                time.sleep(_PAUSE_S)

    def _begin_look(self) -> None:
        now_s = self._clock()
        self._is_looking_far = self._far is not None and now_s >= self._next_look_s
        if self._is_looking_far and self._far is not None:
            self._next_look_s = now_s + self._far.interval_s
            if not self._has_failed:
                ended = self._far_listings.get(ENDED, {})
                self._far_ended = {name: mark for name, mark in ended.items() if self._is_of_this_try(name)}
            self._has_failed = False

    def _list_far(self, folder: str, after: str) -> dict[str, str]:
        """List the prefix; if the store does not answer, use its last listing, so that local files are still read."""
        is_wanted = self._is_looking_far or folder not in self._far_listings
        if self._far is not None and is_wanted and not self._has_failed:
            try:
                self._far_listings[folder] = self._far.listing(folder, after)
            except OSError as error:
                self._has_failed = True
                if not self._was_told:
                    self._was_told = True
                    _log.warning("debugger: tensors of other hosts are late: %s", error)
        return {name: mark for name, mark in self._far_listings.get(folder, {}).items() if name >= after}

    def _is_of_this_try(self, name: str) -> bool:
        """Whether a host's mark belongs to this try; True for a worker's mark, whose time the trial checks."""
        own, found = HOST_FILE.fullmatch(self._own_end), HOST_FILE.fullmatch(name)
        return own is None or found is None or found[2] == own[2]

    def _has_waited(self) -> bool:
        if self._ended_at_s is None:
            if self._own_end not in self._near.listing(ENDED):
                return False
            self._ended_at_s = self._clock()
        if self._far is None:
            return True
        self.is_late = self._clock() - self._ended_at_s > self._late_s
        return self.is_late
