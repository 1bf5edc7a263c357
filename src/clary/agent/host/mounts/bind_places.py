"""Safe opening of both ends of a bind mount, without following links made by a program or another user.

Where: `host_root` and `late_binds` mount by the descriptors opened here, with the rights of the host's first process. A
host may be built while another host with the same /opt/ml runs (`agent.rules`), so the path to a mount point may
contain folders that a program owns at that moment. An absolute link below the new root would lead into the old root,
which is the machine's own.
Source: proc(5), /proc/self/fd: a mount resolves such a path to the opened folder itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clary.agent.host import kernel
from clary.agent.host.program_users import ProgramUsers
from clary.base.beneath import Folder, open_beneath, parts_of
from clary.base.beneath_trees import copy_tree
from clary.base.mounted_places import shown_at

_LOOK_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_FLAGS = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE = 0o644
_FOLDER_MODE = 0o755


@contextlib.contextmanager
def opened_source(bind: Mapping[str, Any], *, hidden: Sequence[str]) -> Iterator[str]:
    """Yield a path by which the source of a bind can be mounted, unaffected by later changes of its name.

    Args:
        bind: fields of a `sandbox.Bind`. Without `below`, the source is a canonical path that only trusted users can
            change.
        hidden: folders that a source with `below` may neither contain nor lie in.
    Raises: OSError: the source does not exist, its path contains a link, or it would expose a hidden folder.
    """
    source, below = bind["source"], bind.get("below")
    if below is None:
        if not os.path.exists(source):
            raise FileNotFoundError(f"bind {source} at {bind['target']}: the source does not exist")
        yield source
        return
    with Folder.at(source) as top:
        try:
            folder = top.folder(below)
        except OSError as error:
            raise OSError(
                error.errno,
                f"bind {source} at {bind['target']}: {below!a} below it cannot be opened as a folder without following "
                f"links: {error.strerror}",
            ) from error
        with folder:
            for place in hidden:
                if folder.holds(place) or folder.lies_in(place) or shown_at(folder.path, place) is not None:
                    raise PermissionError(
                        f"bind {source} at {bind['target']}: {below or '/'!a} below it would show {place}, which is "
                        "hidden from programs"
                    )
            yield folder.path


@contextlib.contextmanager
def opened_mount_point(root: str, path: str, *, is_folder: bool, users: ProgramUsers | None = None) -> Iterator[str]:
    """Make a mount point unless it exists, and yield a path by which to mount on it.

    Args:
        root: the host's root, as this process sees it.
        path: absolute and canonical in the host's root.
        is_folder: whether a folder is mounted there.
        users: users of the programs, who own new entries; None if this process's user owns them.
    Raises: OSError: an entry cannot be made, or the path contains a link.
    """
    above, _, name = path.strip("/").rpartition("/")
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(Folder.at(root))
        for part in (*parts_of(above), *((name,) if is_folder else ())):
            make_owned(folder, part, is_folder=True, users=users)
            folder = opened.enter_context(folder.folder(part))
        if is_folder:
            yield folder.path
            return
        make_owned(folder, name, is_folder=False, users=users)
        descriptor = open_beneath(folder.fileno(), name, _LOOK_FLAGS)
        opened.callback(os.close, descriptor)
        yield f"/proc/self/fd/{descriptor}"


def make_owned(folder: Folder, name: str, *, is_folder: bool, users: ProgramUsers | None) -> None:
    """Make a folder or an empty file, unless an entry of that name exists.

    Args:
        users: users of the programs, who own new entries; None if this process's user owns them.
    Raises: OSError.
    """
    try:
        os.stat(name, dir_fd=folder.fileno(), follow_symlinks=False)
    except FileNotFoundError:
        pass
    else:
        return
    if users is not None:
        # On a mount with mapped owners only these users can create entries.
        with contextlib.suppress(PermissionError), kernel.files_of(users.first_id):
            _make(folder, name, is_folder=is_folder)
            return
    _make(folder, name, is_folder=is_folder)
    if users is not None:
        os.chown(name, users.first_id, users.first_id, dir_fd=folder.fileno(), follow_symlinks=False)


def _make(folder: Folder, name: str, *, is_folder: bool) -> None:
    with contextlib.suppress(FileExistsError):
        if is_folder:
            os.mkdir(name, _FOLDER_MODE, dir_fd=folder.fileno())
        else:
            os.close(os.open(name, _NEW_FILE_FLAGS, _FILE_MODE, dir_fd=folder.fileno()))


@contextlib.contextmanager
def opened_mount(root: str, path: str, *, is_folder: bool) -> Iterator[str]:
    """Yield a path to the mount at `path`, whereas `opened_mount_point` yields the entry beneath it.

    Args: as `opened_mount_point`.
    """
    flags = _LOOK_FLAGS | os.O_DIRECTORY if is_folder else _LOOK_FLAGS
    with Folder.at(root) as top:
        descriptor = open_beneath(top.fileno(), path.strip("/"), flags)
        try:
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)


def copy_content(source: str, target: str) -> None:
    """Copy the content of a folder into another folder without following links. Raises: OSError.

    Args:
        source: path of the folder.
        target: a path yielded by `opened_mount_point`.
    """
    with Folder.at(source) as content, Folder.at(target) as folder:
        copy_tree(content, folder)
