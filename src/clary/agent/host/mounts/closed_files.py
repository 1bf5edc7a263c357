"""Search for files of system folders that not all users may read, so that hosts omit them.

Where: `machine_view` calls it for each system folder whose files programs own in their host. Sockets, pipes and devices
count as closed too: they lead to the machine's processes. /etc is scanned completely for every host, in a few
milliseconds. Folders of packages are large: there every folder is checked, but files only in folders that have changed
since the last search, because a new or replaced file changes its folder. A change of only the mode does not change the
folder. Such a file was readable before, and the full search every few minutes finds it (150,000 files: a second).
Checking only the folders of /usr still takes a tenth of a second, so a result is valid for a few seconds, and a job's
agent scans once in the background while the job is prepared (`refresh`).

    /var/cache/clary/NAME.json           [closed paths], valid by the file's age
    /var/cache/clary/NAME-folders.json   {"looked_at": time of the full search in s, "folders": {folder: ctime in ns}}
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Collection, Iterator
from typing import Any

CACHE_FOLDER = "/var/cache/clary"
UNCACHED = ("/etc",)
FRESH_S = 10.0  # programs may see files created in /usr within this time
WHOLE_S = 600.0  # programs may see files of /usr whose mode was changed within this time
_JUST_NOW_S = 1.0  # agents of several hosts start at the same moment
_TURN_S = 10.0  # a first search of a machine takes a few seconds
_TURN_LOOK_S = 0.005
OPEN_FOLDER = 0o005
RACY_NS = 2_000_000_000  # within one tick of the file system's clock a folder may change again without a new ctime


def find_closed(
    folder: str,
    *,
    skipped: Collection[str],
    cache_folder: str = CACHE_FOLDER,
    fresh_s: float = FRESH_S,
    whole_s: float = WHOLE_S,
) -> list[str]:
    """Return the paths below `folder` that not all users may read or enter.

    Args:
        folder: canonical path.
        skipped: folders that are not searched.
        cache_folder: where results are stored, except for folders in `UNCACHED`.
        fresh_s: maximum age of a stored result.
        whole_s: maximum age of the last full search; until then unchanged folders are skipped.
    """
    if folder in UNCACHED:
        search = _Search(folder, skipped)
        search.look_into(folder)
        return sorted(search.closed)
    cache = f"{cache_folder}/{folder.strip('/').replace('/', '-')}"
    known, age_s = _read(f"{cache}.json")
    if isinstance(known, list) and 0 <= age_s < fresh_s:
        return known
    with _turn(cache_folder):
        known, age_s = _read(f"{cache}.json")
        if isinstance(known, list) and 0 <= age_s < fresh_s:
            return known
        closed = known if isinstance(known, list) else []
        return _look_again(folder, skipped, cache=cache, closed=closed, whole_s=whole_s)


def refresh(folder: str, *, skipped: Collection[str], cache_folder: str = CACHE_FOLDER) -> None:
    """Refresh the cached result of `find_closed` for a folder, unless it was written within the last second.

    Args: as `find_closed`.
    """
    cache = f"{cache_folder}/{folder.strip('/').replace('/', '-')}"
    with _turn(cache_folder):
        known, age_s = _read(f"{cache}.json")
        if isinstance(known, list) and 0 <= age_s < _JUST_NOW_S:
            return
        closed = known if isinstance(known, list) else []
        _look_again(folder, skipped, cache=cache, closed=closed, whole_s=WHOLE_S)


@contextlib.contextmanager
def _turn(cache_folder: str) -> Iterator[None]:
    """Wait while another process searches, for `_TURN_S` at most.

    Without the wait each of the hosts that start at the same moment would search all folders.
    """
    try:
        os.makedirs(cache_folder, mode=0o700, exist_ok=True)
        lock = os.open(f"{cache_folder}/lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:  # without a cache each process searches
        yield
        return
    try:
        deadline_s = time.monotonic() + _TURN_S
        while time.monotonic() < deadline_s:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(_TURN_LOOK_S)
        yield
    finally:
        os.close(lock)


def _look_again(folder: str, skipped: Collection[str], *, cache: str, closed: list[str], whole_s: float) -> list[str]:
    search = _Search(folder, skipped)
    noted, _ = _read(f"{cache}-folders.json")
    stamps, looked_at = (noted.get("folders"), noted.get("looked_at")) if isinstance(noted, dict) else (None, None)
    if (
        isinstance(stamps, dict)
        and folder in stamps
        and isinstance(looked_at, float)
        and 0 <= time.time() - looked_at < whole_s
    ):
        search.go_on(stamps, closed)
    else:
        looked_at = time.time()
        search.look_into(folder)
    found = sorted(search.closed)
    with contextlib.suppress(OSError):  # the next host searches everything again
        os.makedirs(os.path.dirname(cache), mode=0o700, exist_ok=True)
        if search.has_looked:
            # In this order: if this process ended between both writes, no folder would be recorded as searched without
            # its closed files.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{cache}-folders.json")
        _write(f"{cache}.json", found)
        if search.has_looked:
            _write(f"{cache}-folders.json", {"looked_at": looked_at, "folders": search.stamps})
    return found


class _Search:
    """A search for closed files and folders below a folder, on one file system."""

    def __init__(self, folder: str, skipped: Collection[str]) -> None:
        self._folder = folder
        self._skipped = frozenset(skipped)
        self._device = os.stat(folder).st_dev
        self.stamps: dict[str, int] = {}  # ctime in ns of each searched folder; 0 if a change could go unnoticed
        self.closed: set[str] = set()
        self.has_looked = False

    def go_on(self, stamps: dict[str, int], closed: list[str]) -> None:
        """Load an earlier search and search changed folders again."""
        self.stamps, self.closed = stamps, set(closed)
        changed = []
        for path, stamp in stamps.items():
            try:
                if os.lstat(path).st_ctime_ns != stamp:
                    changed.append(path)
            except OSError:
                changed.append(path)
        for path in changed:
            del stamps[path]
            self.closed = {one for one in self.closed if one != path and os.path.dirname(one) != path}
        for path in changed:
            self.look_into(path)

    def look_into(self, folder: str) -> None:
        """Search a folder and the unknown folders below it."""
        self.has_looked = True
        waiting = [folder]
        while waiting:
            here = waiting.pop()
            if here in self._skipped or here in self.stamps:
                continue
            try:
                status = os.lstat(here)
                if not stat.S_ISDIR(status.st_mode) or status.st_dev != self._device:
                    continue
                if status.st_mode & OPEN_FOLDER != OPEN_FOLDER and here != self._folder:
                    self.closed.add(here)
                    continue
                is_racy = 0 <= time.time_ns() - status.st_ctime_ns < RACY_NS  # a time in the future cannot recur
                self.stamps[here] = 0 if is_racy else status.st_ctime_ns
                waiting += self._look_at(here)
            except OSError:  # removed meanwhile
                continue

    def _look_at(self, folder: str) -> list[str]:
        """Record the closed files directly in a folder; return its subfolders."""
        folders = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    mode = entry.stat(follow_symlinks=False).st_mode
                    if not stat.S_ISREG(mode) or not mode & stat.S_IROTH:
                        self.closed.add(entry.path)
        return folders


def _read(path: str) -> tuple[Any, float]:
    """Return a JSON file's content and its age in s; None for a missing, broken or untrusted file."""
    try:
        with open(path, encoding="ascii") as file:
            status = os.fstat(file.fileno())
            if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
                return json.load(file), time.time() - status.st_mtime
    except (OSError, ValueError):
        pass
    return None, 0.0


def _write(path: str, content: Any) -> None:
    partial = f"{path}.{os.getpid()}"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(json.dumps(content))
    os.replace(partial, path)
