"""Removes whole trees without following a link, also trees that programs have made hard to remove.

Where: `beneath_trees` removes trees of programs with it, the daemon of a box its own folder and those of hosts. Folders
may have any depth and any permissions: overlayfs itself leaves work folders of mode 0 behind when a host is killed.
What is mounted below a tree is not part of it, and stays.
This module imports the standard library alone, because the daemon's file contains it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

_OWNER_ONLY = 0o700


def remove_folder(path: str | os.PathLike[str]) -> bool:
    """Remove a folder and all below it, or a file; return whether it was removed completely."""
    parent, name = os.path.split(os.path.abspath(path))
    try:
        above = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        remove_entry(above, name)
    finally:
        os.close(above)
    return not os.path.lexists(path)


def remove_entry(parent: int, name: str) -> None:
    """Remove an entry of an open folder, with all below it, except entries that this process may not remove.

    Args:
        parent: descriptor of the folder.
        name: name of the entry, without `/`.
    """
    try:
        top = _opened_up(parent, name)
    except OSError:
        with contextlib.suppress(OSError):
            _is_removed(parent, name)
        return
    try:
        empty(top)
    finally:
        os.close(top)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=parent)


def empty(home: int) -> None:
    """Remove everything below an open folder, except entries that this process may not remove.

    Each folder is made accessible before it is entered, and folders below the second level are moved up first, so that
    nothing recurses.

    Args:
        home: descriptor of the folder.
    """
    waiting = _names(home)
    mark, num_moved = f".removed-{os.urandom(4).hex()}", 0
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(OSError):
            if _is_removed(home, name):
                continue
            here = _opened_up(home, name)
            try:
                for inner in _names(here):
                    with contextlib.suppress(OSError):
                        if _is_removed(here, inner):
                            continue
                        os.close(_opened_up(here, inner))  # a moved folder has to be writable: its ".." changes
                        aside = f"{mark}-{num_moved}"
                        num_moved += 1
                        os.rename(inner, aside, src_dir_fd=here, dst_dir_fd=home)
                        waiting.append(aside)
            finally:
                os.close(here)
            os.rmdir(name, dir_fd=home)


def _opened_up(parent: int, name: str) -> int:
    """Open a folder after giving its owner all permissions; return its descriptor. Raises: OSError."""
    look = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        with contextlib.suppress(OSError):  # another user owns it; it may still be readable
            os.chmod(f"/proc/self/fd/{look}", _OWNER_ONLY)
        return os.open(f"/proc/self/fd/{look}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(look)


def _is_removed(folder: int, name: str) -> bool:
    """Remove an entry, and return True, unless it is a folder with content. Raises: OSError, also for a mount point."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
        return True
    try:
        os.rmdir(name, dir_fd=folder)  # of an empty folder of another user, too, which could be neither read nor moved
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise
        return False
    return True


def _names(folder: int) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.ENOENT):
            return []
        raise
