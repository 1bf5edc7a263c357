"""Where a symbolic link of a program's tree leads, worked out without following it blindly.

Where: `trees` asks before it reads through a link. The program wrote the link inside its own view (`/opt/ml`), the
agent reads it outside, with more rights: a link to `/etc/shadow` or to `../../..` must never be followed here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from clary.contract.ml_tree import OPT_ML

_MAX_LINKS_FOLLOWED = 40  # as Linux

Parts = tuple[str, ...]
Mounts = Mapping[Parts, Path]  # by their place below `home`: folders that the program saw there and that lie elsewhere

NO_MOUNTS: Mounts = MappingProxyType({})


def on_disk(home: Path, parts: Parts, mounts: Mounts = NO_MOUNTS) -> tuple[Path, Parts]:
    """Return where a place below `home` lies: a folder that no program can replace, and the way from there.

    Args:
        parts: with no link among them.
    """
    for place, folder in mounts.items():
        if parts[: len(place)] == place:
            return folder, parts[len(place) :]
    return home, parts


def resolve_link(home: Path, folder: Parts, target: str, *, mounts: Mounts = NO_MOUNTS) -> Parts | None:
    """Return the place below `home` that a link leads to, as parts with no link among them.

    Args:
        home: the job's `/opt/ml` as this process sees it; absolute targets below `/opt/ml` or `home` start here.
        folder: where the link lies, as parts below `home` with no link among them.
        target: text of the link.
        mounts: what a program saw at such a place is found there, whatever lies in `home` itself.
    Returns: None if the link leaves `home`, leads to nothing or goes round in circles.
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
            next_target = os.readlink(_path(home, (*place, part), mounts))
        except FileNotFoundError:
            return None
        except OSError:  # EINVAL: no link
            place.append(part)
            continue
        num_followed += 1
        following = _start(home, tuple(place), next_target)
        if num_followed > _MAX_LINKS_FOLLOWED or following is None:
            return None
        place, further = following
        ahead.extend(further)
    return tuple(place) if _path(home, tuple(place), mounts).exists() else None


def _path(home: Path, parts: Parts, mounts: Mounts) -> Path:
    start, below = on_disk(home, parts, mounts)
    return start.joinpath(*below)


def _start(home: Path, folder: Parts, target: str) -> tuple[list[str], list[str]] | None:
    """Return the folder to start from and the parts to walk, last one first; None if the link starts outside."""
    if not target.startswith("/"):
        return list(folder), list(reversed(target.split("/")))
    for view in (OPT_ML, home):
        if PurePosixPath(target).is_relative_to(view):
            return [], list(reversed(target.split("/")[len(view.parts) :]))
    return None
