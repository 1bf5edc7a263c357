"""Lists, removes and copies whole trees below an open folder without following a link.

Where: the agent and the service use it for every tree that a program wrote, also while the program runs; `beneath`
opens the files. Programs write trees of any depth and width, so none of these functions recurses, and each holds few
descriptors.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clary.base import tree_removal
from clary.base.beneath import Folder, parts_of

_MODE_BITS = 0o777
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Entry:
    """One name below a folder."""

    path: str  # path below the listed folder, with `/`
    status: os.stat_result  # status of the name itself: a link is described, not followed

    @property
    def is_file(self) -> bool:
        """Whether the entry is a regular file."""
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_folder(self) -> bool:
        """Whether the entry is a folder."""
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        """Whether the entry is a symbolic link."""
        return stat.S_ISLNK(self.status.st_mode)


def entries(
    folder: Folder,
    path: str = "",
    *,
    max_entries: int | None = None,
    max_depth: int | None = None,
    on_error: Callable[[OSError], None] | None = None,
) -> Iterator[Entry]:
    """Yield the entries below a folder: each folder before its content, otherwise in no order.

    A folder that cannot be opened, or that was replaced by another kind of entry meanwhile, counts as empty.

    Args:
        path: folder below `folder` at which to begin; paths of entries start with it.
        max_entries: number of names after which the listing ends.
        max_depth: levels of nested folders to list below `path`; 0 lists `path` alone.
        on_error: called with the error of a folder that cannot be opened; it may raise.
    Raises: OSError if `path` itself cannot be opened.
    """
    start = "/".join(parts_of(path))
    waiting = [(start, 0)]
    num_seen = 0
    while waiting:
        place, depth = waiting.pop()
        try:
            opened = folder.folder(place)
        except OSError as error:
            if place == start:
                raise
            if on_error is not None:
                on_error(error)
            continue
        with opened, os.scandir(opened.fileno()) as found:
            for item in found:
                if max_entries is not None and num_seen >= max_entries:
                    return
                num_seen += 1
                try:
                    status = os.stat(item.name, dir_fd=opened.fileno(), follow_symlinks=False)
                except OSError:
                    continue  # the entry was removed meanwhile
                entry = Entry(f"{place}/{item.name}" if place else item.name, status)
                yield entry
                if entry.is_folder and (max_depth is None or depth < max_depth):
                    waiting.append((entry.path, depth + 1))


def remove_tree(folder: Folder, path: str) -> bool:
    """Remove the file or tree at `path` below `folder`; return whether it was removed completely.

    Folders may have any depth and any permissions: each folder is made accessible before it is entered, and folders
    below the second level are moved up first. Entries that this process may not remove stay.
    """
    *above, name = parts_of(path)
    with contextlib.suppress(OSError), folder.folder("/".join(above)) as parent:
        tree_removal.remove_entry(parent.fileno(), name)
    try:
        folder.status(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def empty(top: Folder) -> None:
    """Remove everything below an open folder, except entries that this process may not remove."""
    tree_removal.empty(top.fileno())


def copy_tree(source: Folder, target: Folder) -> list[str]:
    """Copy folders, regular files and links into an open folder; return the paths of all other entries.

    Links are copied with their text unchanged, which is resolved relative to the copy. Sockets, pipes and devices are
    left out. Files and links replace entries of the target other than folders.
    State after failure: copied entries stay.
    Raises: OSError: an entry could not be read or written, or an entry of the target cannot be replaced: a folder at
        the path of a file or link, or any other entry, even a link, at the path of a folder.
    """

    def refuse(error: OSError) -> None:
        raise error

    left_out = []
    for entry in entries(source, on_error=refuse):
        if entry.is_folder:
            target.folder(entry.path, create=True).close()
        elif entry.is_file:
            copy_file(source, entry.path, target, entry.path)
        elif entry.is_link:
            target.remove(entry.path, missing_ok=True)
            target.make_link(entry.path, source.read_link(entry.path))
        else:
            left_out.append(entry.path)
    return left_out


def copy_file(source: Folder, path: str, target: Folder, target_path: str) -> None:
    """Copy a regular file with its mode and time to `target_path`, replacing the entry there.

    Args:
        path: path below `source`.
        target_path: path below `target`; its folder must exist.
    Raises: OSError.
    """
    descriptor = source.open_file(path)
    try:
        status = os.fstat(descriptor)
        with target.replacing(target_path, mode=stat.S_IMODE(status.st_mode) & _MODE_BITS) as file:
            while data := os.read(descriptor, _COPY_BYTES):
                file.write(data)
            file.flush()
            os.utime(file.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(descriptor)
