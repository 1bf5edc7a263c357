"""Test whether this machine can isolate hosts.

Where: tests of hosts call it, to skip tests that this machine cannot run. The service probes with an anchor instead
(`control.engines.local.isolation`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import clary
from clary.agent.host import kernel
from clary.contract.launch_plan import Isolation

_PROBE_LIMIT_S = 20.0
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from clary.agent.host.support import probe; probe()"
_SYSCTLS = {
    "/proc/sys/kernel/unprivileged_userns_clone": "0",  # Debian before 11
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",  # Ubuntu from 23.10
    "/proc/sys/user/max_user_namespaces": "0",
}


def supports(isolation: Isolation) -> str | None:
    """Return None if this user can make hosts with this isolation on this machine, else the reason."""
    if not sys.platform.startswith("linux"):
        return f"hosts need Linux (namespaces, /proc); this is {sys.platform}"
    if isolation is Isolation.PROCESSES:
        return None
    sources = str(Path(clary.__file__).parents[1])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _START, sources],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"entering namespaces took longer than {_PROBE_LIMIT_S:g} s"
    if done.returncode == 0:
        return None
    reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"namespaces are refused to {_user()}: {reason}{_advice()}"


def probe() -> None:
    """Enter namespaces and mount as a host would; raise the kernel's error. Runs in a process of its own."""
    from clary.agent.host.init import enter_own_user_namespace  # imported late: only the probing process needs it

    if os.geteuid() != 0:
        enter_own_user_namespace()
    kernel.unshare(
        kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWNET
    )
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", kind="tmpfs")  # noqa: S108 - in a mount namespace of its own


def _user() -> str:
    return "root" if os.geteuid() == 0 else f"user {os.geteuid()}"


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
