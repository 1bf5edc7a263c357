"""Test whether overlays of this machine's folders can be mounted.

Where: called before a host gets a folder that it must not change. The host would detect the failure itself, but its
start might then wait for copies of large folders.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import clary
from clary.agent.host import kernel
from clary.base.limited_runs import RunTooLong, run_limited

_LIMIT_S = 20.0
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from clary.agent.host.overlay_support import probe; probe()"


def why_no_overlay(folder: Path) -> str | None:
    """Return None if a host with its folder in `folder` can have overlays, else the reason. Raises: OSError."""
    sources = str(Path(clary.__file__).parents[1])
    with tempfile.TemporaryDirectory(prefix="overlay-", dir=folder) as place:
        try:
            done = run_limited([sys.executable, "-I", "-S", "-B", "-c", _START, sources, place], limit_s=_LIMIT_S)
        except RunTooLong:
            return f"trying it out took longer than {_LIMIT_S:g} s"
    if done.code == 0:
        return None
    return (done.errors.strip().splitlines() or ["no reason given"])[-1]


def probe() -> None:
    """Mount an overlay as a host would; raise the kernel's error. Runs in a process of its own."""
    # Imported late: saves 24 ms of an agent's start, because only the probing process needs these modules.
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
