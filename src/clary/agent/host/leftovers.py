"""Removal of a program's leftovers on the machine: its private files and its cgroups.

Where: `first_process` removes the host's folder with it at the end, and `init` folder and cgroups after the agent's
death. Other modules of the agent remove folders of earlier programs with `remove_tree`. It imports only modules that
the first process of a host has already loaded.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

from clary.base import beneath_trees
from clary.base.beneath import Folder

_CGROUP_LIMIT_S = 10.0  # per cgroup; the agent has died, so nobody waits, and nobody else would remove the cgroups
_CGROUP_PAUSE_S = 0.005


def remove_tree(folder: str) -> None:
    """Remove `folder` and its content without following links; entries that the user may not remove stay.

    Programs write trees of any depth and with any permissions, and an overlay leaves folders without permissions.
    """
    above, name = os.path.split(folder.rstrip("/"))
    with contextlib.suppress(OSError), Folder.at(above) as parent:
        beneath_trees.remove_tree(parent, name)


def remove_cgroups(folders: Sequence[str], *, home_files: Sequence[str]) -> None:
    """Move this process to the agent's own cgroups and remove the host's; those with processes stay."""
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
                _go_home(home_files)  # this process may be the last process in the cgroup
        with contextlib.suppress(OSError):  # the last host removes the family's folder
            os.rmdir(os.path.dirname(folder))


def _go_home(home_files: Sequence[str]) -> None:
    for path in home_files:
        with contextlib.suppress(OSError), open(path, "w") as file:
            file.write("0")
