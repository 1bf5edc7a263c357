"""Small files that a program left behind, read without following anything that it may have put in their place."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path


def read_start(root: Path, parts: Sequence[str], *, max_bytes: int) -> bytes | None:
    """Return the first `max_bytes` of the regular file `parts` below `root`; None if there is none that may be read.

    The program owns the tree: a link could lead to files of the machine, and a pipe would hold its reader.
    """
    descriptors: list[int] = []
    try:
        descriptors.append(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptors.append(os.open(part, flags, dir_fd=descriptors[-1]))
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptors.append(os.open(parts[-1], flags, dir_fd=descriptors[-1]))
        if not stat.S_ISREG(os.fstat(descriptors[-1]).st_mode):
            return None
        return os.read(descriptors[-1], max_bytes)
    except OSError:
        return None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
