"""Mirror of a folder in the object store while a program writes to it: tensors, TensorBoard events.

Where: the supervisor starts one mirror per folder with the program and finishes it before the host's work ends. Unlike
checkpoints these files form no sets: each is stored by itself when it has changed. A worker's end mark is stored after
all files that were written before it, so a reader of the store that sees the mark finds all these files. The program
owns the folder: no link in its path or content is followed.

[Note: an end mark without a file] A file cannot be stored if it is unreadable or its name is too long. While writers
run, end marks wait for such a file, since a later round may read it. Once all writers have ended they no longer wait:
a reader would never learn of the end. The missing file is then named in `error`, which becomes a note of the job.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clary.agent.worker import Worker
from clary.base.beneath import Folder
from clary.base.beneath_trees import entries
from clary.base.errors import ClaryError
from clary.contract.object_store import ObjectStore, parse_s3_uri

INTERVAL_S = 3.0  # between two scans of the folder
AGAIN_S = 30.0  # minimum time between two uploads of a growing file
# Bytes/s: a growing file is uploaded whole each time, so at least (its size / this) s pass between two uploads.
AGAIN_BYTES_PER_S = 8 * 1024 * 1024
MOST_LOAD = 50  # the pause after a scan is at least this many times the scan's own time
MAX_FILES = 200_000  # per folder; further files are not stored, and `error` says so
MAX_ENTRIES = 1_000_000  # names of any kind per scan, folders included
LAST_NAMES = ("ended", "END_OF_JOB.ts")  # first parts of the paths of end marks
_MAX_KEY_BYTES = 1024  # of S3

logger = logging.getLogger(__name__)

_Mark = tuple[int, int, int]  # inode, size, time of the last change


@dataclass(frozen=True)
class _Stored:
    mark: _Mark
    at_s: float


class FolderMirror(Worker):
    """Mirrors one folder from a thread of its own.

    Args:
        home: a folder that the program cannot replace.
        below: names of the folders from `home` to the mirrored folder, which is the last.
        s3_uri: prefix; the file `a/b` becomes `PREFIX/a/b`.
        open_store: makes the object store's client; closed at the end.
        interval_s: between scans.
        stores_bare_end: whether an end mark is stored even if this host has stored no other file; for a prefix that
            several hosts share.
    """

    def __init__(
        self,
        home: Path,
        below: tuple[str, ...],
        *,
        s3_uri: str,
        open_store: Callable[[], ObjectStore],
        interval_s: float = INTERVAL_S,
        stores_bare_end: bool = False,
    ) -> None:
        super().__init__("folder-mirror", failure=f"the mirror of {home.joinpath(*below)} has ended")
        self._home, self._below = home, below
        self._uri = parse_s3_uri(s3_uri)
        self._open_store = open_store
        self._interval_s = interval_s
        self._stores_bare_end = stores_bare_end
        self._forgotten: tuple[str, ...] = ()
        self._stored: dict[str, _Stored] = {}
        self._seen_last: set[str] = set()
        self._has_forgotten = False
        self._is_quiet = False  # whether all writers have ended
        self._settled = threading.Event()
        self._store: ObjectStore | None = None
        self._is_complete = False
        self._num_read = 0  # bytes of files that the store's client has taken
        self._look_s = 0.0  # time that the last scan of the folder took
        self._error = ""

    @property
    def error(self) -> str:
        """Error of the last round, or an empty text if it went well."""
        return self._error

    @property
    def num_stored(self) -> int:
        """How many files are in the store."""
        return len(self._stored)

    def forget(self, names: Sequence[str]) -> None:
        """Delete files of earlier tries from the store before the first upload; call it before `start`."""
        self._forgotten = tuple(names)

    def start(self) -> None:
        """Open the store and start the thread."""
        self._store = self._open_store()
        super().start()

    def opened(self) -> Folder:
        """Open the folder without following links. Raises: OSError, also if a link has replaced it."""
        with Folder.at(self._home) as home:
            return home.folder("/".join(self._below))

    def flush(self) -> None:
        """Start a round at once and store every changed file, because all writers have ended.

        Later rounds follow as before until `finish`.
        """
        self._is_quiet = True
        super().flush()

    def wait_stored(self, timeout_s: float) -> bool:
        """Wait, after `flush`, until all files are stored or the mirror has ended; return False on timeout."""
        return self._store is None or self._settled.wait(timeout_s)

    def finish(self, limit_s: float, *, longest_s: float | None = None) -> bool:
        """Run a last round, and end; return whether all files are stored.

        Args:
            limit_s: the round is aborted when it has sent nothing for so long.
            longest_s: the round is aborted after this time in any case; None: after `limit_s`.
        """
        end_s = time.monotonic() + (limit_s if longest_s is None else max(limit_s, longest_s))
        self.stop()
        num_seen = -1
        while self.is_running and num_seen != self._num_read and (left_s := end_s - time.monotonic()) > 0:
            num_seen = self._num_read
            self.join(min(limit_s, left_s))
        if self.is_running:
            self._error = self._error or (
                f"nothing was sent for {limit_s:g} s" if num_seen == self._num_read else "the last round took too long"
            )
            self.abort()
        return self._is_complete

    def abort(self) -> None:
        """Stop at once; any thread may call this, repeatedly."""
        super().abort()
        if self._store is not None:
            threading.Thread(target=self._store.close, name="object-store-closing", daemon=True).start()

    def _round(self) -> float | None:
        if not self._has_forgotten:
            self._forget()
            self._has_forgotten = True
            if not (self._is_quiet or self.is_stopping):
                return self._interval_s
        is_last = self.is_stopping
        is_quiet = is_last or self._is_quiet
        has_all = self._store_changed(is_quiet=is_quiet)
        self._is_complete = has_all and is_last
        if has_all and is_quiet:
            self._settled.set()
        return None if is_last else max(self._interval_s, MOST_LOAD * self._look_s)

    def _on_failure(self, error: Exception) -> None:
        self._error = f"{type(error).__name__}: {error}"

    def _on_end(self) -> None:
        self._settled.set()
        if self._store is not None:
            self._store.close()

    def _forget(self) -> None:
        assert self._store is not None
        for name in self._forgotten:
            try:
                self._store.delete(self._uri.bucket, self._key(name))
            except ClaryError as error:
                logger.warning("%s of an earlier try stays in the store: %s", name, error)

    def _store_changed(self, *, is_quiet: bool) -> bool:
        """Store the changed files that are due; return whether all due files are stored.

        An unreadable file does not delay the others, except end marks; see [Note: an end mark without a file].
        """
        unread = ""
        try:
            with self.opened() as folder:
                began_s = time.thread_time()
                marks, unread = _files(folder)
                self._look_s = time.thread_time() - began_s
                lasts = {name for name in marks if _is_last(name)}
                names = marks.keys() - lasts
                # An end mark waits for a round that begins after the mark was written and that defers no other file.
                late = lasts if is_quiet else lasts & self._seen_last
                self._seen_last = lasts
                if any(self._is_deferred(name, marks[name], is_quiet=is_quiet) for name in names):
                    late = set()
                if not names and not self._stored and not self._stores_bare_end:
                    late = set()  # an end mark without saved files helps no reader
                for name in (*sorted(names), *sorted(late)):
                    if self.is_aborted:
                        return False
                    if name in late and unread and not is_quiet:
                        break
                    if self._is_due(name, marks[name], is_quiet=is_quiet):
                        unread = self._store_file(folder, name, marks[name]) or unread
        except FileNotFoundError:
            pass  # no file was saved yet
        except (ClaryError, OSError) as error:
            self._error = str(error)
            return False
        self._error = unread
        return not unread

    def _is_due(self, name: str, mark: _Mark, *, is_quiet: bool) -> bool:
        stored = self._stored.get(name)
        has_changed = stored is None or stored.mark != mark
        return has_changed and not self._is_deferred(name, mark, is_quiet=is_quiet)

    def _is_deferred(self, name: str, mark: _Mark, *, is_quiet: bool) -> bool:
        """Whether a changed file must wait for a later round, because its last upload is too recent."""
        stored = self._stored.get(name)
        if stored is None or stored.mark == mark or is_quiet:
            return False
        return time.monotonic() - stored.at_s < max(AGAIN_S, stored.mark[1] / AGAIN_BYTES_PER_S)

    def _store_file(self, folder: Folder, name: str, mark: _Mark) -> str:
        """Store a file; return "", or the reason why it cannot be read. Raises: ClaryError, OSError of the store."""
        assert self._store is not None
        key = self._key(name)
        if len(key.encode()) > _MAX_KEY_BYTES:
            return f"a name of {len(key.encode())} bytes is too long for S3: {key[:80]}..."
        try:
            descriptor = folder.open_file(name)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{name}: {error}"
        with open(descriptor, "rb", buffering=0) as file:
            self._store.upload_stream(self._uri.bucket, key, _Bounded(file, mark[1], self._note_read))
        self._stored[name] = _Stored(mark, time.monotonic())
        return ""

    def _note_read(self, num_bytes: int) -> None:
        self._num_read += num_bytes

    def _key(self, name: str) -> str:
        return self._uri.child(name).key


class _Bounded:
    """The first bytes of a file that may grow while it is read."""

    def __init__(self, file: io.FileIO, size_bytes: int, note: Callable[[int], None]) -> None:
        self._file, self._left, self._note = file, size_bytes, note

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, or b"" at the end."""
        wanted = self._left if size < 0 else min(size, self._left)
        data = (self._file.read(wanted) or b"") if wanted else b""
        self._left -= len(data)
        self._note(len(data))
        return data


def _is_last(name: str) -> bool:
    return name.split("/")[0] in LAST_NAMES


def _files(folder: Folder) -> tuple[dict[str, _Mark], str]:
    """Return the plain files below an open folder, and "", or the reason why some of them are missing.

    Names that begin with a dot are left out, because they belong to files that are still being written, and so are
    names that are not UTF-8.
    """
    marks: dict[str, _Mark] = {}
    for number, entry in enumerate(entries(folder)):
        if number >= MAX_ENTRIES:
            return marks, f"the folder holds more than {MAX_ENTRIES} files and folders; some of them are not stored"
        if not entry.is_file or entry.path.rpartition("/")[2].startswith("."):
            continue
        with contextlib.suppress(UnicodeEncodeError):
            entry.path.encode()
            if len(marks) >= MAX_FILES:
                return marks, f"the folder holds more than {MAX_FILES} files; some of them are not stored"
            marks[entry.path] = (entry.status.st_ino, entry.status.st_size, entry.status.st_mtime_ns)
    return marks, ""
