"""Namespaces of this process, through libc: Python has these calls from 3.12 on.

Where: the anchor (`network_building`) makes namespaces with it, `network_faults` and `disk_faults` join them.
Source: unshare(2), setns(2), user_namespaces(7).
"""

from __future__ import annotations

import ctypes
import os

from clary.base.shared_limits import enter_limited_users

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

# Kernel settings that may forbid user namespaces: sysctl file, and the value that forbids them.
_USER_NAMESPACE_SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", "0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
)


def unshare(flags: int) -> None:
    """Move this thread into new namespaces; CLONE_NEWUSER needs a process with one thread.

    Raises: OSError; nothing has changed.
    """
    _call("unshare", flags)


def setns(descriptor: int, kind: int) -> None:
    """Move this thread into the namespace behind an open descriptor.

    Raises: OSError; nothing has changed.
    """
    _call("setns", descriptor, kind)


def enter_own_user_namespace() -> None:
    """Become root of a new user namespace whose only user is the caller.

    Raises: OSError whose text names the kernel setting that may be the reason.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        enter_limited_users(lambda: unshare(CLONE_NEWUSER))
        _write("/proc/self/setgroups", "deny")  # without it an unprivileged gid_map is refused
        _write("/proc/self/uid_map", f"0 {uid} 1")
        _write("/proc/self/gid_map", f"0 {gid} 1")
    except OSError as error:
        raise OSError(error.errno, f"user namespace: {error.strerror}{user_namespace_hint()}") from error


def user_namespace_hint() -> str:
    """Return `; sysctl NAME is VALUE` for each kernel setting that forbids user namespaces, or an empty text."""
    hints = []
    for path, forbidding in _USER_NAMESPACE_SWITCHES:
        try:
            with open(path, encoding="ascii") as file:
                value = file.read().strip()
        except OSError:
            continue
        if value == forbidding:
            hints.append(f"; sysctl {path.removeprefix('/proc/sys/').replace('/', '.')} is {value}")
    return "".join(hints)


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
