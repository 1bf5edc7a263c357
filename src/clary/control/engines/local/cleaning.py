"""Removes an attempt's leftovers other than processes: mounts, cgroups, host folders.

Where: `LocalEngine` calls it in a thread at launch, on release and for `leftovers`. Every function also succeeds if its
work is already done.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from clary.base.beneath import Folder
from clary.base.beneath_trees import remove_tree

MNT_DETACH = 2
CGROUP_FAMILY = "clary"  # folder of all hosts' cgroups, below the agent's own cgroup


class MountEntry(NamedTuple):
    """One mount of this mount namespace."""

    number: str  # unique id, even if one mount covers another
    point: str
    file_system: str


def mount_entries(mountinfo: str | None = None) -> list[MountEntry]:
    """Return the mounts in `mountinfo`, or by default the present mounts of this mount namespace."""
    if mountinfo is None:
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        found.append(MountEntry(fields[0], _unescape(fields[4]), after.split(" ", 1)[0]))
    return found


def mounts_below(folder: Path) -> list[str]:
    """Return the mount points at or below `folder` in this mount namespace, deepest first."""
    prefix = str(folder)
    found = [entry.point for entry in mount_entries() if entry.point == prefix or entry.point.startswith(prefix + "/")]
    return sorted(found, key=len, reverse=True)


def unmount_below(folder: Path) -> list[str]:
    """Detach every mount at or below `folder`; return the detached mount points."""
    libc = ctypes.CDLL(None, use_errno=True)
    return [point for point in mounts_below(folder) if libc.umount2(os.fsencode(point), MNT_DETACH) == 0]


def own_cgroup_places() -> tuple[str, ...]:
    """Return the folders of this process's cgroups in every mounted hierarchy of versions 1 and 2."""
    mounts: list[tuple[str, str, set[str]]] = []  # version, mount point, controllers
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()[:3]
            if kind in ("cgroup", "cgroup2"):
                mounts.append((kind, _unescape(before.split()[4]), set(options.split(","))))
    places = []
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        for version, point, mounted in mounts:
            is_theirs = version == "cgroup2" if not controllers else set(controllers.split(",")) <= mounted
            if is_theirs and os.path.isdir(point + path):
                places.append((point + path).rstrip("/"))
    return tuple(dict.fromkeys(places))


def host_cgroups(places: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the cgroups of these hosts that exist below `places` or their ancestors."""
    found = []
    for place in places:
        for base in (place, *(str(parent) for parent in Path(place).parents)):
            for name in names:
                folder = f"{base}/{CGROUP_FAMILY}/{name}"
                if base.startswith("/sys/fs/cgroup") and os.path.isdir(folder):
                    found.append(folder)
    return list(dict.fromkeys(found))


def remove_empty_cgroups(folders: Iterable[str]) -> list[str]:
    """Remove cgroups, and their common parent folder after the last of them; a cgroup with processes stays."""
    removed = []
    for folder in folders:
        # The kernel refuses to remove a cgroup with processes or children, so no prior check is needed.
        with contextlib.suppress(OSError):
            os.rmdir(folder)
            removed.append(folder)
            os.rmdir(os.path.dirname(folder))
    return removed


def remove_trees(folder: Path) -> list[str]:
    """Remove the folders inside `folder`, but not its files, such as logs. No entry below a mount is removed.

    Symbolic links are removed, not followed.
    """
    if not folder.is_dir() or mounts_below(folder):
        return []
    with Folder.at(folder) as top:
        folders = [name for name in top.names() if stat.S_ISDIR(top.status(name).st_mode)]
        return [str(folder / name) for name in folders if remove_tree(top, name)]


def _unescape(text: str) -> str:
    """Undo the octal escapes of mountinfo, proc(5)."""
    for escaped, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escaped, plain)
    return text
