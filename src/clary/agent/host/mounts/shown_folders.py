"""The machine's folders that a host shows, and the folders among them that programs may change as their own.

Where: `host_root` mounts them through `machine_view`; the supervisor checks program files in other folders before a
start. Programs see only these folders, the plan's binds and the host's own files.

[Note: owners of files]
With a root service, programs are root of a user namespace. In system folders, which contain files of distributions, the
machine's root is mapped to the programs' root, so that package managers work; files there that not all users may read
are hidden (`closed_files`), and of /etc hosts see a copy (`open_copy`), because closed files appear there while hosts
run. In all other folders the machine's users appear as nobody: the kernel lets programs read
only files that all users may read, which also holds for files created later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clary.agent.host.mounts.closed_files import UNCACHED, refresh
from clary.agent.host.mounts.mount_table import is_within
from clary.agent.host.mounts.open_copy import open_copy

# Package managers write to these folders; owners in the host are the machine's owners.
_SYSTEM_FOLDERS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/var/lib/alternatives",
    "/var/lib/apt",
    "/var/lib/dpkg",
    "/var/lib/pam",
    "/var/lib/rpm",
    "/var/lib/ucf",
    "/var/cache/apt",
    "/var/cache/debconf",
)
# Software that administrators have installed for all users.
_SOFTWARE_FOLDERS = ("/usr/local", "/opt", "/nix/store", "/gnu/store")
# In `_SOFTWARE_FOLDERS`: folders into which pip (of the system's interpreter) and make install. Programs may add and
# replace files in these folders and their direct subfolders, but not write to existing files.
WRITABLE_FOLDERS = (
    "/usr/local",
    "/usr/local/lib",
    "/usr/local/share",
    "/usr/local/share/man",
    "/usr/local/lib/python3*",
)

# Created empty, because programs expect them.
EMPTY_FOLDERS = (
    "/boot",
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/root",
    "/srv",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/mail",
    "/var/spool",
)


@dataclass(frozen=True)
class ShownFolder:
    """A folder of the machine, by its canonical path."""

    path: str
    is_system: bool  # see [Note: owners of files]


def shown_folders(visible: Iterable[str], *, is_whole: bool = False) -> tuple[ShownFolder, ...]:
    """Return the folders to show, parents before the folders inside them.

    Args:
        visible: folders named by the settings; missing folders are skipped.
        is_whole: whether `/` is shown too.
    """
    wanted = [("/", False)] if is_whole else []
    wanted += [(path, True) for path in _SYSTEM_FOLDERS]
    wanted += [(path, False) for path in (*_SOFTWARE_FOLDERS, *visible)]
    found: dict[str, bool] = {}
    for path, is_system in wanted:
        real = os.path.realpath(path)
        # A link from one system folder to another, such as /bin on most systems, is shown as a link.
        if os.path.isdir(real) and (is_system is False or real == path):
            found.setdefault(real, is_system)
    return tuple(ShownFolder(path, found[path]) for path in sorted(found, key=lambda path: path.split("/")))


def look_at_system_folders() -> None:
    """Scan the system folders for the hosts that start within the next seconds; needs real root."""
    shown = shown_folders(())
    skipped = [folder.path for folder in shown if not folder.is_system]
    for folder in shown:
        if not folder.is_system:
            continue
        if folder.path not in UNCACHED:
            refresh(folder.path, skipped=skipped)
            continue
        try:
            open_copy(folder.path, skipped=skipped, own_place=None).close()
        except OSError as error:  # every host then makes a copy of its own
            print(f"no shared copy of {folder.path}: {error}", file=sys.stderr)


def is_shown(path: str, shown: Sequence[ShownFolder]) -> bool:
    """Return whether a canonical path lies in one of the folders."""
    return any(is_within(path, folder.path) for folder in shown)


def links_on_the_way(path: str) -> list[tuple[str, str]]:
    """Return the symbolic links in `path`: canonical path and target text of each."""
    links: list[tuple[str, str]] = []
    parts = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    resolved = ""
    while parts and len(links) < 40:  # the kernel's own limit on links
        part = parts.pop()
        if part == "..":
            resolved = os.path.dirname(resolved).rstrip("/")
            continue
        place = f"{resolved}/{part}"
        if not os.path.islink(place):
            resolved = place
            continue
        text = os.readlink(place)
        links.append((place, text))
        if text.startswith("/"):
            resolved = ""
        parts += [step for step in reversed(text.split("/")) if step not in ("", ".")]
    return links
