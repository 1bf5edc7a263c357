"""Resolution of the symbolic links in a program's tree, without letting the kernel follow them.

Where: `trees` resolves a link before it reads through it. The program wrote the link inside its own view (`/opt/ml`),
the agent reads it outside that view, with more rights: a link to `/etc/shadow` or to `../../..` must never be followed
here. Every lookup starts from a folder descriptor, because a program may replace a folder of the path by a link at any
moment.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from clary.base.beneath import Folder
from clary.contract.ml_tree import OPT_ML

_MAX_LINKS_FOLLOWED = 40  # as Linux

Parts = tuple[str, ...]
Mounts = Mapping[Parts, Path]  # path below `home` -> the folder elsewhere that the program saw at that path

NO_MOUNTS: Mounts = MappingProxyType({})


def on_disk(home: Path, parts: Parts, mounts: Mounts = NO_MOUNTS) -> tuple[Path, Parts]:
    """Return the location of a path below `home`: a folder that no program can replace, and the path below that folder.

    Args:
        parts: path below `home`, with no link among its parts.
    """
    for place, folder in mounts.items():
        if parts[: len(place)] == place:
            return folder, parts[len(place) :]
    return home, parts


def status_of(home: Path, parts: Parts, mounts: Mounts = NO_MOUNTS) -> os.stat_result | None:
    """Return the status of the entry at a path below `home` (of a link, not of its target), or None without an entry.

    Args: as `on_disk`.
    Raises: OSError if a parent is no folder.
    """
    start, below = on_disk(home, parts, mounts)
    try:
        with Folder.at(start) as folder:
            return folder.status("/".join(below))
    except FileNotFoundError:
        return None


def link_at(home: Path, parts: Parts, mounts: Mounts = NO_MOUNTS) -> str | None:
    """Return the target text of the link at a path below `home`, or None if the entry is not a link.

    Args: as `on_disk`.
    Raises: OSError if no entry exists there, or if a parent is no folder.
    """
    start, below = on_disk(home, parts, mounts)
    if not below:
        return None  # a start folder, which no program can replace
    with Folder.at(start) as folder:
        try:
            return folder.read_link("/".join(below))
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise


def resolve_link(home: Path, folder: Parts, target: str, *, mounts: Mounts = NO_MOUNTS) -> Parts | None:
    """Return the path below `home` to which a link resolves, as parts with no link among them.

    Args:
        home: the job's `/opt/ml` as this process sees it; absolute targets below `/opt/ml` or `home` start here.
        folder: where the link lies, as parts below `home` with no link among them.
        target: text of the link.
        mounts: folders that the program saw in place of those in `home`; they are searched instead.
    Returns: None if the link leaves `home`, dangles, or is part of a cycle.
    """
    start = _start(home, folder, target)
    if start is None:
        return None
    place, ahead = start
    num_followed = 0
    while ahead:
        part = ahead.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not place:
                return None
            place.pop()
            continue
        try:
            next_target = link_at(home, (*place, part), mounts)
        except OSError:
            return None
        if next_target is None:
            place.append(part)
            continue
        num_followed += 1
        following = _start(home, tuple(place), next_target)
        if num_followed > _MAX_LINKS_FOLLOWED or following is None:
            return None
        place, further = following
        ahead.extend(further)
    try:
        return None if status_of(home, tuple(place), mounts) is None else tuple(place)
    except OSError:
        return None


def _start(home: Path, folder: Parts, target: str) -> tuple[list[str], list[str]] | None:
    """Return the folder to start from and the parts to walk, in reverse order; None if the link starts outside."""
    if not target.startswith("/"):
        return list(folder), list(reversed(target.split("/")))
    for view in (OPT_ML, home):
        if PurePosixPath(target).is_relative_to(view):
            return [], list(reversed(target.split("/")[len(view.parts) :]))
    return None
