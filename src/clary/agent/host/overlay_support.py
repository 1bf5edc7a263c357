"""Trial whether private layers can be laid over folders of this machine.

Where: asked before a host is shown a folder that it must not change. A host finds out by itself too, but then it may
have to copy large folders while its start waits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import clary
from clary.agent.host import kernel

_LIMIT_S = 20.0
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from clary.agent.host.overlay_support import probe; probe()"


def why_no_overlay(folder: Path) -> str | None:
    """Return None if a host whose own folder is `folder` can have overlays, or else why not. Raises: OSError."""
    sources = str(Path(clary.__file__).parents[1])
    with tempfile.TemporaryDirectory(prefix="overlay-", dir=folder) as place:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _START, sources, place],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"trying it out took longer than {_LIMIT_S:g} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def probe() -> None:
    """Lay an overlay as a host would; raises the kernel's error. Runs in a process of its own."""
    # saves 24 ms of an agent's start: only the probing process imports them
    from clary.agent.host.init import enter_own_user_namespace
    from clary.agent.host.mounts.machine_view import MachineView

    in_user_namespace = os.geteuid() != 0
    if in_user_namespace:
        enter_own_user_namespace()
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    place = sys.argv[1]
    for name in ("layers", "lower", "target"):
        os.mkdir(f"{place}/{name}")
    view = MachineView("", layers_folder=f"{place}/layers", in_user_namespace=in_user_namespace)
    if not view.overlay(f"{place}/lower", f"{place}/target"):
        raise OSError(view.refusal)
