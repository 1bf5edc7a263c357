"""Folders of checkpoints: renaming after a save, recovery after a kill, and removal of old ones.

Where: `folders`. A save is written to a temporary sibling folder, `.{name}.{mark}`, and is whole once it contains
LAYOUT.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

PARTIAL = "_partial"  # suffix of partial checkpoints' names
LAYOUT = "layout.json"
LAYOUT_BEFORE = "layout.json.unfinished"


def move(beside: Path, folder: Path) -> bool:
    """Move a whole save into place; return False if a rank of another host, sharing the folder, moves it."""
    try:
        (beside / LAYOUT_BEFORE).replace(beside / LAYOUT)  # from here on the save is whole
    except FileNotFoundError:
        return False
    before = beside.with_name(f".{folder.name}.before-{beside.name.rpartition('.')[2]}")
    if folder.exists():
        folder.replace(before)
    beside.replace(folder)
    shutil.rmtree(before, ignore_errors=True)
    for rest in _remains(folder):
        shutil.rmtree(rest, ignore_errors=True)  # leftovers of interrupted saves
    return True


def _remains(folder: Path) -> Iterator[Path]:
    """Yield the unfinished folders of saves beside a folder."""
    return folder.parent.glob(f".{glob.escape(folder.name)}.*")


def put_in_place(folder: Path) -> None:
    """Finish a save that was killed between its last two steps."""
    whole = [one for one in _remains(folder) if (one / LAYOUT).exists()]
    if not folder.exists() and whole:
        newest = max(whole, key=lambda one: (one / LAYOUT).stat().st_mtime_ns)
        with contextlib.suppress(OSError):  # a rank of another host, sharing the folder, has moved it
            newest.replace(folder)


def write_text(path: Path, text: str) -> None:
    """Write a file so that it exists whole or not at all; make its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def prune(folder: Path, num_kept: int) -> None:
    """Remove all partial checkpoints except the newest `num_kept`."""
    found = [one for one in folder.glob(f"*{PARTIAL}") if (one / LAYOUT).exists()]
    found.sort(key=lambda one: (one / LAYOUT).stat().st_mtime_ns)
    for one in found[: max(len(found) - num_kept, 0)]:
        shutil.rmtree(one, ignore_errors=True)
