"""Probe of whether this machine can isolate hosts, for tests that it cannot run otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import clary
from clary.agent.host import kernel

_LIMIT_S = 20.0
_START = "import sys; sys.path[:0] = sys.argv[1:]; from isolation_probe import probe; probe()"
_SYSCTLS = {
    "/proc/sys/kernel/unprivileged_userns_clone": "0",  # Debian before 11
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",  # Ubuntu from 23.10
    "/proc/sys/user/max_user_namespaces": "0",
}


def why_no_namespaces() -> str | None:
    """Return None if this user can make hosts with namespaces on this machine, else the reason."""
    folders = [str(Path(__file__).parent), str(Path(clary.__file__).parents[1])]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _START, *folders],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"entering namespaces took longer than {_LIMIT_S:g} s"
    if done.returncode == 0:
        return None
    reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    user = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    return f"namespaces are refused to {user}: {reason}{_advice()}"


def probe() -> None:
    """Enter namespaces and mount as a host would; raise the kernel's error. Runs in a process of its own."""
    from clary.agent.host.init import enter_own_user_namespace  # imported late: only the probing process needs it

    if os.geteuid() != 0:
        enter_own_user_namespace()
    kernel.unshare(
        kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWNET
    )
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", kind="tmpfs")


def _advice() -> str:
    if os.geteuid() == 0:
        return "; root without CAP_SYS_ADMIN, as in a container that is not privileged"
    for path, forbidding in _SYSCTLS.items():
        try:
            with open(path) as file:
                if file.read().strip() == forbidding:
                    name = path.removeprefix("/proc/sys/").replace("/", ".")
                    return (
                        f"; the setting {name} = {forbidding} forbids them, an administrator can change it with sysctl"
                    )
        except OSError:
            continue
    return ""
