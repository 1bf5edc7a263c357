"""Replaces small files atomically: a process or machine that stops at any moment leaves the old file or the new one.

Where: the state folder, records of engines, and the daemon of a box write their files with this module.
"""

from __future__ import annotations

import os
from pathlib import Path

SECRET = 0o600


def replace_durably(path: Path, content: bytes, *, mode: int = SECRET) -> None:
    """Replace a file's content atomically; the new content is on disk when this returns. Raises: OSError.

    Args:
        path: path of the file.
        content: the whole content.
        mode: permission bits of the file.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_durably(path: Path) -> None:
    """Remove a file; the removal is on disk when this returns. A missing file is no error. Raises: OSError."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to disk. Raises: OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
