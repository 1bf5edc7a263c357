"""Events in the checkpoint folder by name: writes, closes, renames, in the order of their occurrence.

Where: the witness calls `read` whenever events wait, and at every look (scan of the folder). A name's history describes
the file that now has the name. An event is evidence only for the state that the file had at that moment.

[Note: new folders] A program may make a folder and write into it before a watch exists. So a folder is scanned once its
watch exists: files that no process has open were closed before the scan. A folder that was renamed into the tree gets
new watches, and every file below it counts as renamed too.

[Note: no watch] The kernel bounds watches (fs.inotify.max_user_watches) and queues (max_user_instances). Files in an
unwatched folder have no history. Which processes have them open decides whether they are whole; the log reports this
once. If a queue overflows, all histories are dropped.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from clary.agent.checkpoints.evidence import inotify
from clary.agent.checkpoints.evidence.inotify import Event, Inotify
from clary.agent.checkpoints.evidence.observations import Close
from clary.agent.checkpoints.folder import CheckpointFolder, open_below
from clary.agent.checkpoints.scanning import FileFacts, facts_of
from clary.base.clock import Clock

_MAX_DEPTH = 100
_MAX_WATCHES = 10_000  # per checkpoint folder: each watch costs the kernel about a kilobyte
_MAX_HISTORIES = 100_000
_LIMITS = {
    errno.EMFILE: "fs.inotify.max_user_instances is reached",
    errno.ENOSPC: "fs.inotify.max_user_watches is reached",
}


@dataclass(frozen=True, kw_only=True)
class History:
    """Observed closes, renames and writes of the file under one name.

    Attributes:
        facts: of the file when it was closed, renamed or linked; None if it was written to since.
        told: sequence number of the event in the folder; None if the history does not come from an event.
        is_named: whether the file got its name by a rename or a link, after it was written.
        close: when the file was closed last.
        written_s: time of the last write event; None if the file was closed since.
        longest_pause_s: longest pause between two writes to the file.
    """

    facts: FileFacts | None = None
    told: int | None = None
    is_named: bool = False
    close: Close | None = None
    written_s: float | None = None
    longest_pause_s: float = 0.0

    def says_of(self, facts: FileFacts) -> bool:
        """Whether the history describes this state of the file."""
        return self.facts is not None and self.facts.is_written_as(facts)


class FolderEvents:
    """Watches a folder and its subfolders; used only under the witness's lock.

    Args:
        is_free: whether no other process has the file of a descriptor open for writing.
        note: called once for each limit that leaves folders unwatched.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        *,
        is_free: Callable[[int], bool],
        clock: Clock,
        note: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._is_free = is_free
        self._clock = clock
        self._note = note
        self._noted: set[str] = set()
        self._inotify: Inotify | None = None
        self._paths: dict[int, str] = {}  # watch -> path of its folder; "" for the checkpoint folder
        self._histories: dict[str, History] = {}
        self._drained_s = -inf  # start of the last read that emptied the queue
        self._num_events = 0
        self.longest_pause_s = 0.0  # between two writes to a file that has been closed since

    def start(self) -> None:
        """Start the watches."""
        try:
            self._inotify = Inotify()
        except OSError as error:
            self._tell_limit(error)
            return
        self._watch_all()

    @property
    def descriptor(self) -> int | None:
        """The descriptor that is readable when events wait; None without a watch."""
        return self._inotify.descriptor if self._inotify is not None else None

    def read(self) -> bool:
        """Read the queued events; return whether one of them requires a check of the processes."""
        if self._inotify is None:
            return False
        began_s, is_news = self._clock.monotonic(), False
        for event in self._inotify.read():
            is_news = self._take(event) or is_news
        self._drained_s = began_s
        return is_news

    def history(self, path: str) -> History | None:
        """Return the history of the file under a name, or None if unknown."""
        return self._histories.get(path)

    def close(self) -> None:
        """Close the watch; a second call does nothing."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def _take(self, event: Event) -> bool:
        self._num_events += 1
        if event.mask & inotify.OVERFLOW:
            self._histories.clear()
            self._tell("the kernel's queue of events ran over (fs.inotify.max_queued_events)")
            self._watch_all()
            return True
        above = self._paths.get(event.watch)
        if above is None:
            return False
        if event.mask & inotify.IGNORED:
            del self._paths[event.watch]
            return False
        path = f"{above}/{event.name}" if above else event.name
        if not event.name:
            return False
        if event.mask & inotify.IS_FOLDER:
            self._take_folder(path, event.mask)
        else:
            known = self._histories.get(path)
            self._take_file(path, event.mask)
            if event.mask & inotify.MODIFY:
                # a file was opened for writing: new processes may exist
                return known is None or known.written_s is None
        return bool(event.mask & (inotify.CREATE | inotify.CLOSE_WRITE | inotify.MOVED_TO))

    def _take_folder(self, path: str, mask: int) -> None:
        if mask & (inotify.MOVED_FROM | inotify.DELETE):
            self._forget_below(path)
        elif mask & (inotify.CREATE | inotify.MOVED_TO):
            try:
                descriptor = self._open(path)
            except OSError:
                return  # removed again, or unreadable, which the next scan reports
            self._watch_below(descriptor, path, is_named=bool(mask & inotify.MOVED_TO), is_new=True)

    def _take_file(self, path: str, mask: int) -> None:
        now_s = self._clock.monotonic()
        known = self._histories.get(path, History())
        if mask & (inotify.MOVED_FROM | inotify.DELETE):
            self._histories.pop(path, None)
            return
        if mask & inotify.CREATE:
            # A created file is empty at first. A new name for a file with content was made by a link.
            known = History(facts=self._facts(path), told=self._num_events, is_named=True)
            if known.facts is not None and not known.facts.size_bytes:
                known = History()
        elif mask & inotify.MOVED_TO:
            known = History(facts=self._facts(path), told=self._num_events, is_named=True)
        elif mask & inotify.MODIFY:
            pause_s = now_s - known.written_s if known.written_s is not None else 0.0
            known = replace(
                known,
                facts=None,
                is_named=False,
                written_s=now_s,
                longest_pause_s=max(known.longest_pause_s, pause_s),
            )
        elif mask & inotify.CLOSE_WRITE:
            self.longest_pause_s = max(self.longest_pause_s, known.longest_pause_s)
            known = replace(
                known,
                facts=self._facts(path),
                told=self._num_events,
                is_named=known.is_named and known.facts is not None,
                written_s=None,
                close=Close(after_s=self._drained_s, before_s=self._clock.monotonic()),
            )
        elif mask & inotify.ATTRIB and known.facts is not None:
            # Times or permissions were set; a write would have caused an earlier event.
            known = replace(known, facts=self._facts(path))
        if len(self._histories) < _MAX_HISTORIES or path in self._histories:
            self._histories[path] = known

    def _watch_all(self) -> None:
        try:
            descriptor = self._folder.open()
        except OSError:
            return  # the next scan reports the error
        self._watch_below(descriptor, "", is_named=False)

    def _watch_below(self, descriptor: int, path: str, *, is_named: bool, is_new: bool = False, depth: int = 0) -> None:
        """Watch an open folder and the folders in it; close its descriptor.

        Args:
            is_named: whether the folder was renamed into the tree.
            is_new: whether the folder and all its files have appeared since the watches started.
        """
        assert self._inotify is not None
        try:
            if len(self._paths) >= _MAX_WATCHES:
                raise OSError(errno.ENOSPC, f"more than {_MAX_WATCHES} folders")
            self._paths[self._inotify.watch(descriptor)] = path
            for name in os.listdir(descriptor):
                below = f"{path}/{name}" if path else name
                try:
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode) and depth < _MAX_DEPTH:
                        inner = open_below(descriptor, name)
                        self._watch_below(inner, below, is_named=is_named, is_new=is_new, depth=depth + 1)
                    elif stat.S_ISREG(status.st_mode) and is_named:
                        self._histories[below] = History(facts=facts_of(status), told=self._num_events, is_named=True)
                    elif stat.S_ISREG(status.st_mode) and is_new:
                        self._histories[below] = self._found(below)
                except FileNotFoundError:
                    continue
        except OSError as error:
            self._tell_limit(error)
        finally:
            os.close(descriptor)

    def _found(self, path: str) -> History:
        """Return the history of a file that was written before its folder was watched."""
        try:
            descriptor = self._folder.open_file(path)
        except OSError:
            return History()
        try:
            facts = facts_of(os.fstat(descriptor))
            if not self._is_free(descriptor):
                return History()
            return History(facts=facts, close=Close(after_s=-inf, before_s=self._clock.monotonic()))
        except OSError:
            return History()
        finally:
            os.close(descriptor)

    def _forget_below(self, path: str) -> None:
        assert self._inotify is not None
        for watch, folder in list(self._paths.items()):
            if folder == path or folder.startswith(f"{path}/"):
                del self._paths[watch]
                try:
                    self._inotify.forget(watch)
                except OSError:
                    continue  # the folder was removed, and the kernel has removed its watch
        for name in [name for name in self._histories if name.startswith(f"{path}/")]:
            del self._histories[name]

    def _open(self, path: str) -> int:
        descriptor = self._folder.open()
        for part in path.split("/"):
            try:
                below = open_below(descriptor, part)
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor

    def _facts(self, path: str) -> FileFacts | None:
        above, _, name = path.rpartition("/")
        try:
            folder = self._open(above) if above else self._folder.open()
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            finally:
                os.close(folder)
        except OSError:
            return None
        return facts_of(status) if stat.S_ISREG(status.st_mode) else None

    def _tell_limit(self, error: OSError) -> None:
        self._tell(_LIMITS.get(error.errno or 0, str(error)))

    def _tell(self, why: str) -> None:
        if why not in self._noted:
            self._noted.add(why)
            self._note(
                f"checkpoints: not everything in the folder is watched: {why}. Renames there are not seen as such; "
                "whether files are whole is judged by the processes that have them open"
            )
