"""The machine's mounts that a host must show, parsed from /proc/self/mountinfo.

Where: `host_root` needs it, because neither an overlay of `/` nor a plain bind mount includes submounts. Pure.
Source: proc(5), section /proc/pid/mountinfo.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Kernel file systems and automounts; a host gets its own or none.
_KERNEL_FILE_SYSTEMS = frozenset(
    [
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "sysfs",
        "tracefs",
    ]
)


def submounts(mountinfo: str, *, covered: Iterable[str] = ()) -> list[str]:
    """Return the mount points below `/` that contain files, each once, parents before children.

    Args:
        mountinfo: text of /proc/self/mountinfo.
        covered: folders that the host does not show; mounts at or in them are skipped.
    """
    covering = tuple(covered)
    found = set()
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        path = _unescaped(before.split(" ")[4])
        kind = after.split(" ", 1)[0]
        if path == "/" or kind in _KERNEL_FILE_SYSTEMS or any(is_within(path, folder) for folder in covering):
            continue
        found.add(path)
    return sorted(found, key=lambda path: path.split("/"))


def mounted_kinds(mountinfo: str) -> dict[str, str]:
    """Return mount point -> kind of its visible file system.

    Args:
        mountinfo: text of /proc/self/mountinfo.
    """
    kinds = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kinds[_unescaped(before.split(" ")[4])] = after.split(" ", 1)[0]
    return kinds


def is_within(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` or lies in it; both absolute and normal."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _unescaped(text: str) -> str:
    # Space, tab, newline and backslash are written as three octal digits.
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
