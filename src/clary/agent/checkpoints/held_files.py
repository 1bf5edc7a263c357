"""Files of the checkpoint folder kept open from one look to the next, independent of their names.

[Note: replaced files] `os.replace(new, path)` puts a whole file at a name. A file that is replaced so before it was
seen at rest can be told from one that is written in place only by itself: file systems use a freed inode's number again
at once, and a rename within a tick of their clock leaves no trace in the times. So the file is kept open. If, a moment
later, its size, times and mode are the same and it has no name any more, then it was at rest until another one took its
place. While it is open, its room on the disk is not free.

What a writer gives up looks the same: a write fails, half a file is unlinked, and the name is used again. But it is
unlinked at once, and a whole file keeps its name until the next one has been written. So the time between its last
change and the loss of its name, which is the last change of the inode itself, has to reach `min_rest_s`. A half that
its writer leaves alone for longer before it removes it is taken for whole, as one that is left alone for the time of
two looks is; files that are replaced faster than that are never taken while they change.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.scanning import FileFacts, facts_of

_MAX_HELD = 64  # open files of the agent


@dataclass(frozen=True, kw_only=True)
class _Held:
    descriptor: int
    facts: FileFacts


class HeldFiles:
    """Open files; belongs to one thread.

    Args:
        min_rest_s: how long a file that was replaced has to have lain unchanged before.
    """

    def __init__(self, folder: CheckpointFolder, *, min_rest_s: float) -> None:
        self._folder = folder
        self._min_rest_ns = round(min_rest_s * 1e9)
        self._held: dict[str, _Held] = {}

    def hold(self, paths: Sequence[str]) -> None:
        """Release the held files and open others, the first ones if there are many; unreadable files are left out."""
        self.release()
        for path in paths[:_MAX_HELD]:
            try:
                descriptor = self._folder.open_file(path)
            except OSError:
                continue  # it has gone, or the next reading of it says what is wrong
            try:
                status = os.fstat(descriptor)
            except OSError:
                _close(descriptor)  # a network file system has lost it
                continue
            self._held[path] = _Held(descriptor=descriptor, facts=facts_of(status))

    def replaced(self) -> dict[str, FileFacts]:
        """Return the held files that rested unchanged and then lost their last name.

        Meaningful once a moment has passed since then.
        """
        found = {}
        for path, held in self._held.items():
            try:
                status = os.fstat(held.descriptor)
            except OSError:
                continue  # a network file system has lost it
            facts = facts_of(status)
            rest_ns = facts.changed_ns - max(held.facts.modified_ns, held.facts.changed_ns)
            if status.st_nlink == 0 and is_same_content(facts, held.facts) and rest_ns >= self._min_rest_ns:
                found[path] = facts
        return found

    def descriptors(self) -> Mapping[str, int]:
        """Return the open descriptors by path; readers use offsets of their own."""
        return {path: held.descriptor for path, held in self._held.items()}

    def keep_only(self, paths: Collection[str]) -> None:
        """Close all others."""
        for path in self._held.keys() - set(paths):
            _close(self._held.pop(path).descriptor)

    def release(self) -> None:
        """Close all."""
        self.keep_only(())


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # it was read alone, and is closed all the same
        os.close(descriptor)


def is_same_content(one: FileFacts, other: FileFacts) -> bool:
    """Whether two states of an open file differ in no more than the time at which it lost a name."""
    return replace(one, changed_ns=other.changed_ns) == other
