"""Finds out whether a folder, or a mount below it, exposes a folder that is hidden from programs.

Where: the service checks file systems when a job is created, and agents check them when a host is made. A bind of a
folder includes the mounts below it, and a bind mount has another path than its source. So folders are compared by
device and by path on their file system.
Source: proc(5), section /proc/pid/mountinfo: fields 3 to 5.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple


class _Mount(NamedTuple):
    point: str
    device: str
    root: str  # path on the file system that is visible at `point`


def shown_at(folder: Path | str, place: Path | str, *, mountinfo: str | None = None) -> str | None:
    """Return the path at or below `folder` that exposes `place`, or a folder above or below `place`; else None.

    Args:
        folder: folder to show, with all mounts below it.
        place: path to hide; it need not exist.
        mountinfo: text of the mount table; None reads the present table of this mount namespace.
    Raises: OSError.
    """
    if mountinfo is None:
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    mounts = _mounts(mountinfo)
    top = os.path.realpath(folder)
    device, kept = _on_file_system(os.path.realpath(place), mounts)
    seen = [(top, *_on_file_system(top, mounts))]
    seen += [mount for mount in mounts if _is_within(mount.point, top)]
    for point, of_device, shown in seen:
        if of_device == device and (_is_within(kept, shown) or _is_within(shown, kept)):
            return point
    return None


def _mounts(mountinfo: str) -> list[_Mount]:
    found = []
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        found.append(_Mount(_unescaped(fields[4]), fields[2], _unescaped(fields[3])))
    return found


def _on_file_system(path: str, mounts: list[_Mount]) -> tuple[str, str]:
    """Return the device of a canonical path, and the path from the root of its file system."""
    holding = [mount for mount in mounts if _is_within(path, mount.point)]
    if not holding:
        return "", path  # the root of this process is not a mount point
    deepest = max(len(mount.point) for mount in holding)
    mount = [mount for mount in holding if len(mount.point) == deepest][-1]  # the last mount covers earlier mounts
    below = path[len(mount.point.rstrip("/")) :]
    return mount.device, f"{mount.root.rstrip('/')}{below}" or "/"


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _unescaped(text: str) -> str:
    # Space, tab, newline and backslash are written as three octal digits.
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
