"""Removal of old checkpoint folders.

[Note: unfinished] A save that failed, is under way, or was interrupted leaves a folder with parts of a distributed
checkpoint but without `.metadata`, or an empty folder. Such a folder replaces no checkpoint: if it counted as one, a
few failed saves in a row would remove the last whole checkpoint. Folders with other files count, since a program may
keep full or local states in them.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

SMP_IS_PARTIAL_KEY = "smp_is_partial"  # key in saved states: whether the state is one rank's part
SMP_IS_LOAD_INFO_KEY = "smp_is_load_info"
_METADATA = ".metadata"  # the file that makes a folder a distributed checkpoint
_PARTS = ("*.distcp", "slice.json", f"{_METADATA}.tmp")  # files that a distributed checkpoint has besides it


def SORT_BY_LAST_INT(name: str) -> int:
    """Return the last number in a folder's name, or -1."""
    found = re.findall(r"\d+", name)
    return int(found[-1]) if found else -1


def limit_num_subdirs(
    dir: str | Path,  # noqa: A002 - the library's name
    n: int,
    sort_fn: Callable[[str], Any] = SORT_BY_LAST_INT,
    regex: str | None = None,
    log: bool = True,
) -> list[str]:
    """Remove all subfolders except the last `n`. One rank calls it, after the checkpoint is complete.

    Unfinished checkpoints do not count; those before the last `n` are removed, and later ones stay. See [Note:
    unfinished]. Removal begins with the metadata file, so a folder whose removal was interrupted is no checkpoint.

    Args:
        sort_fn: orders the names; the first ones are removed.
        regex: folders of other names stay, and do not count.
        log: print the removed folders.

    Returns: the names that were removed.
    Raises: ValueError if `n` is negative.
    """
    if n < 0:
        raise ValueError(f"limit_num_subdirs: n is {n}; expected 0 or more folders to keep")
    folder = Path(dir)
    if not folder.is_dir():
        return []
    names = [  # links are kept: they may name a checkpoint
        one.name
        for one in folder.iterdir()
        if one.is_dir() and not one.is_symlink() and (regex is None or re.search(regex, one.name))
    ]
    names.sort(key=lambda name: (sort_fn(name), name))
    if n:
        whole = [name for name in names if not _is_unfinished(folder / name)]
        removed = names[: names.index(whole[-n])] if len(whole) >= n else []
    else:
        removed = names
    for name in removed:
        if log:
            print(f"removing {folder / name}: {n} checkpoints are kept", flush=True)
        for metadata in (folder / name).rglob(_METADATA):
            with contextlib.suppress(FileNotFoundError):
                metadata.unlink()
        shutil.rmtree(folder / name, ignore_errors=True)
    return removed


def _is_unfinished(folder: Path) -> bool:
    """Whether a folder is empty, or a folder in it has parts without metadata. See [Note: unfinished]."""
    parts = [path for pattern in _PARTS for path in folder.rglob(pattern)]
    return not any(folder.iterdir()) or any(not (path.parent / _METADATA).exists() for path in parts)
