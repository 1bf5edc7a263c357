"""A snapshot as files of a host's own.

Where: hosts that have no mounts of their own get a copy, and so does what the agent itself reads or keeps watch over.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from clary.agent.disk_space import disk_errors_named, require_space


def copy_snapshot(source: Path, target: Path, *, size_bytes: int) -> None:
    """Copy a tree into a folder, which is made if need be; files of the same names are replaced.

    Raises: AgentError (fault USER) for a full disk; OSError.
    """
    target.mkdir(parents=True, exist_ok=True)
    require_space(target, needed_bytes=size_bytes)
    with disk_errors_named(target, needed_bytes=size_bytes):
        for base, folders, files in os.walk(source):
            place = target / Path(base).relative_to(source)
            for name in folders:
                (place / name).mkdir(parents=True, exist_ok=True)
            for name in files:
                _copy_file(Path(base, name), place / name)


def _copy_file(source: Path, target: Path) -> None:
    """Copy content alone, within the file system where it can (copy_file_range shares blocks on some)."""
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
