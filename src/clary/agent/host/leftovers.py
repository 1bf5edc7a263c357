"""Take away what a program leaves on the machine: its private files and its cgroups.

Where: `program.close` does it, and `init` when the agent has died and nobody else would. Uses nothing that the first
process of a host has not loaded already.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Sequence

_OWNER_ONLY = 0o700
_CGROUP_LIMIT_S = 10.0  # each; nobody waits for it where the agent has died, and nobody else would remove them
_CGROUP_PAUSE_S = 0.005


def remove_tree(folder: str) -> None:
    """Remove `folder` with everything in it; what the user may not remove stays.

    Programs write trees of any depth, with permissions of any kind, and an overlay leaves folders without any. So each
    folder is opened up before it is entered, and folders below the second level are moved up first, which needs
    neither recursion nor paths longer than the kernel takes.
    """
    with contextlib.suppress(OSError):
        os.chmod(folder, _OWNER_ONLY)
    waiting = [f"{folder}/{name}" for name in _entries(folder)]
    num_moved = 0
    while waiting:
        path = waiting.pop()
        with contextlib.suppress(OSError):
            if not _is_folder(path):
                os.unlink(path)
                continue
            os.chmod(path, _OWNER_ONLY)
            for name in _entries(path):
                inner = f"{path}/{name}"
                if _is_folder(inner):
                    os.chmod(inner, _OWNER_ONLY)  # moving a folder writes to its "..", so it has to be writable
                    aside = f"{folder}/.removed-{num_moved}"
                    num_moved += 1
                    os.rename(inner, aside)
                    waiting.append(aside)
                else:
                    os.unlink(inner)
            os.rmdir(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def remove_cgroups(folders: Sequence[str], *, home_files: Sequence[str]) -> None:
    """Leave the host's cgroups for the agent's own and remove them, which is refused while a process is in one."""
    _go_home(home_files)
    for folder in folders:
        deadline = time.monotonic() + _CGROUP_LIMIT_S
        while os.path.isdir(folder) and time.monotonic() < deadline:
            try:
                os.rmdir(folder)
            except PermissionError:
                break
            except OSError:
                time.sleep(_CGROUP_PAUSE_S)
                _go_home(home_files)  # should this very process be what is still in one
        with contextlib.suppress(OSError):  # the last host takes the family's folder with it
            os.rmdir(os.path.dirname(folder))


def _go_home(home_files: Sequence[str]) -> None:
    for path in home_files:
        with contextlib.suppress(OSError), open(path, "w") as file:
            file.write("0")


def _is_folder(path: str) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
