"""Files of the checkpoint folder that are kept open from one look to the next, whatever becomes of their names.

[Note: replaced files] `os.replace(new, path)` puts a whole file at a name. A file that is replaced so before it was
seen at rest can be told from one that is written in place only by itself: file systems use a freed inode's number again
at once, and a rename within a tick of their clock leaves no trace in the times. So the file is kept open. If, a moment
later, its size, times and mode are the same and it has no name any more, then it was at rest until another one took its
place. While it is open, its room on the disk is not free.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.scanning import FileFacts, facts_of

_MAX_HELD = 64  # open files of the agent


@dataclass(frozen=True, kw_only=True)
class _Held:
    descriptor: int
    facts: FileFacts


class HeldFiles:
    """Open files; belongs to one thread."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder
        self._held: dict[str, _Held] = {}

    def hold(self, paths: Sequence[str]) -> None:
        """Open files, the first ones if there are many, in place of those held; what cannot be opened is left out."""
        self.release()
        for path in paths[:_MAX_HELD]:
            try:
                descriptor = self._folder.open_file(path)
            except OSError:
                continue  # it has gone, or the next reading of it says what is wrong
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                self._held[path] = _Held(descriptor=descriptor, facts=facts_of(status))
            else:
                os.close(descriptor)

    def replaced(self) -> dict[str, FileFacts]:
        """Return those of which no name is left and nothing has changed since they were opened.

        Meaningful once a moment has passed since then.
        """
        found = {}
        for path, held in self._held.items():
            try:
                status = os.fstat(held.descriptor)
            except OSError:
                continue  # a network file system has lost it
            if status.st_nlink == 0 and is_same_content(facts_of(status), held.facts):
                found[path] = facts_of(status)
        return found

    def descriptors(self) -> Mapping[str, int]:
        """Return what is open, by path; whoever reads does so at offsets of its own."""
        return {path: held.descriptor for path, held in self._held.items()}

    def release(self) -> None:
        """Close all."""
        while self._held:
            os.close(self._held.popitem()[1].descriptor)


def is_same_content(one: FileFacts, other: FileFacts) -> bool:
    """Whether two states of an open file differ in no more than the time at which it lost a name."""
    return replace(one, changed_ns=other.changed_ns) == other
