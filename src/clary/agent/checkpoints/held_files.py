"""Files of the checkpoint folder that are kept open from one scan ("look") to the next, independent of their names.

[Note: replaced files] `os.replace(new, path)` gives a name to a complete file. Some files are replaced in this way
before two looks see them unchanged. The name alone does not distinguish such a file from a file written in place: file
systems reuse a freed inode's number at once, and a rename within a tick of their clock leaves no trace in the
times. So the file is kept open. If, a moment later, its size, times and mode are the same and it has lost its name, it
was at rest until another file replaced it. While the file is open, its disk space is not freed.

An abandoned file looks the same: a write fails, the writer unlinks the half-written file and uses the name again. But a
writer unlinks a half-written file at once, whereas a whole file keeps its name until the next file is complete. So the
time between a file's last change and the loss of its name has to reach `min_rest_s`; the kernel records the loss of the
name as the inode's last change. If a writer does not touch a half-written file for longer than `min_rest_s` and then
removes it, the file is taken for whole. The same holds for a file that is untouched from one look to the next. While
files are replaced faster than `min_rest_s`, they are never stored.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.scanning import FileFacts, facts_of

_MAX_HELD = 64  # limit of open files


@dataclass(frozen=True, kw_only=True)
class _Held:
    descriptor: int
    facts: FileFacts


class HeldFiles:
    """The open files; used by one thread.

    Args:
        min_rest_s: a replaced file counts as whole if it was unchanged for at least this time before its replacement.
    """

    def __init__(self, folder: CheckpointFolder, *, min_rest_s: float) -> None:
        self._folder = folder
        self._min_rest_ns = round(min_rest_s * 1e9)
        self._held: dict[str, _Held] = {}

    def hold(self, paths: Sequence[str]) -> None:
        """Close the held files and open others, the first of `paths` up to the limit; skip unreadable files."""
        self.release()
        for path in paths[:_MAX_HELD]:
            try:
                descriptor = self._folder.open_file(path)
            except OSError:
                continue  # the file was removed, or the next read reports the error
            try:
                status = os.fstat(descriptor)
            except OSError:
                _close(descriptor)  # the file vanished from a network file system
                continue
            self._held[path] = _Held(descriptor=descriptor, facts=facts_of(status))

    def replaced(self) -> dict[str, FileFacts]:
        """Return the held files that are unchanged since `hold`, were at rest, and have lost their last name.

        Call this a moment after `hold`, so that the writer of an unfinished file has had time to change it.
        """
        found = {}
        for path, held in self._held.items():
            try:
                status = os.fstat(held.descriptor)
            except OSError:
                continue  # the file vanished from a network file system
            facts = facts_of(status)
            rest_ns = facts.changed_ns - max(held.facts.modified_ns, held.facts.changed_ns)
            if status.st_nlink == 0 and is_same_content(facts, held.facts) and rest_ns >= self._min_rest_ns:
                found[path] = facts
        return found

    def descriptors(self) -> Mapping[str, int]:
        """Return the open descriptors by path; read with pread, which leaves their offsets alone."""
        return {path: held.descriptor for path, held in self._held.items()}

    def keep_only(self, paths: Collection[str]) -> None:
        """Close all files except `paths`."""
        for path in self._held.keys() - set(paths):
            _close(self._held.pop(path).descriptor)

    def release(self) -> None:
        """Close all files."""
        self.keep_only(())


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # the descriptor is closed in spite of the error, and nothing was written to it
        os.close(descriptor)


def is_same_content(one: FileFacts, other: FileFacts) -> bool:
    """Whether two states of an open file are the same, apart from the time at which it lost a name."""
    return replace(one, changed_ns=other.changed_ns) == other
