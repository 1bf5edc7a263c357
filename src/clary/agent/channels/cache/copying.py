"""Copy of a snapshot to a host's own files.

Where: `host_channels` copies for hosts without mounts of their own, if the kernel refuses overlays, and for channels
that the agent itself reads or watches.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from clary.base.disk_space import disk_errors_named, require_space


def copy_snapshot(source: Path, target: Path, *, size_bytes: int) -> None:
    """Copy a tree into a folder, which is created if missing; files of the same names are replaced.

    Args:
        source: top of the tree.
        target: the folder.
        size_bytes: of all files together; this much space must be free before the first file is copied.
    State after failure: no file of the tree is in the folder.
    Raises: AgentError (fault USER) for a full disk; OSError.
    """
    target.mkdir(parents=True, exist_ok=True)
    require_space(target, needed_bytes=size_bytes)
    try:
        with disk_errors_named(target, needed_bytes=size_bytes):
            for file, place in _pairs(source, target):
                place.parent.mkdir(parents=True, exist_ok=True)
                _copy_file(file, place)
            for base, folders, _ in os.walk(source):
                for name in folders:
                    (target / Path(base, name).relative_to(source)).mkdir(parents=True, exist_ok=True)
    except BaseException:
        for _, place in _pairs(source, target):
            with contextlib.suppress(OSError):
                place.unlink()
        raise


def _pairs(source: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    for base, _, files in os.walk(source):
        for name in files:
            yield Path(base, name), target / Path(base, name).relative_to(source)


def _copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file, if possible with copy_file_range, which shares blocks on some file systems."""
    try:
        with source.open("rb") as reading, target.open("wb") as writing:
            left = os.fstat(reading.fileno()).st_size
            while left and (count := os.copy_file_range(reading.fileno(), writing.fileno(), left)):
                left -= count
    except OSError:
        shutil.copyfile(source, target)
    else:
        if left:
            shutil.copyfile(source, target)
