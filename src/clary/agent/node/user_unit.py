"""Start of the daemon under the user's systemd, or without systemd if that is missing.

Where: `installation` starts the daemon; the daemon of a removed box removes its unit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from clary.agent.node.box_folder import ISOLATED, BoxFolder
from clary.agent.node.machine import user_name
from clary.base.limited_runs import RunTooLong, run_limited
from clary.base.whole_files import replace_durably

PROGRAM_TIMEOUT_S = 15.0
BY_HAND = "nothing: after a reboot, run clary hosts add again"
_UNIT = """[Unit]
Description=Clary daemon of box {name}

[Service]
ExecStart="{python}" {options} "{archive}" run "{folder}"
KillMode=process
Restart=on-failure
RestartSec=1
StandardOutput=append:{log}
StandardError=append:{log}

[Install]
WantedBy=default.target
"""


def unit_name(box: str) -> str:
    """Return the name of a box's unit."""
    return f"clary-node-{box}.service"


def start_daemon(folder: BoxFolder, archive: Path, box: str) -> None:
    """Start the daemon in the background: by systemd if possible, else in a new session. Raises: OSError.

    Args:
        folder: of the box.
        archive: the daemon's file.
        box: name of the box.
    """
    if has_user_systemd() and _start_unit(folder, archive, box):
        return
    with open(folder.log, "ab") as log:
        subprocess.Popen(
            [sys.executable, *ISOLATED, str(archive), "run", str(folder.root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )


def who_restarts() -> str:
    """Return a phrase about the mechanism that starts the daemon after a reboot."""
    if not has_user_systemd():
        return BY_HAND
    if _run("loginctl", "show-user", "--property=Linger", "--value", user_name()) == "yes":
        return "systemd of the user, at every boot"
    return "systemd of the user, once somebody is signed in; at every boot after: loginctl enable-linger"


def has_user_systemd() -> bool:
    """Whether the user's systemd instance answers."""
    if shutil.which("systemctl") is None:
        return False
    return _run("systemctl", "--user", "show", "--property=Version", "--value") not in ("", None)


def stop_unit(box: str) -> None:
    """Stop the unit, so that systemd does not restart the daemon while it is replaced."""
    if _unit_path(box).exists():
        _run("systemctl", "--user", "stop", unit_name(box))


def remove_unit(box: str) -> None:
    """Remove the unit, if it exists; the running daemon is not stopped."""
    path = _unit_path(box)
    if path.exists():
        _run("systemctl", "--user", "disable", unit_name(box))
        with contextlib.suppress(OSError):
            path.unlink()
        _run("systemctl", "--user", "daemon-reload")


def _start_unit(folder: BoxFolder, archive: Path, box: str) -> bool:
    facts = {"python": sys.executable, "archive": str(archive), "folder": str(folder.root), "log": str(folder.log)}
    text = _UNIT.format(
        name=box, options=" ".join(ISOLATED), **{name: path.replace("%", "%%") for name, path in facts.items()}
    )
    path = _unit_path(box)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, text.encode(), mode=0o644)
    steps = (("daemon-reload",), ("enable", unit_name(box)), ("restart", unit_name(box)))
    return all(_run("systemctl", "--user", *step) is not None for step in steps)


def _unit_path(box: str) -> Path:
    place = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(place) / "systemd" / "user" / unit_name(box)


def _run(*command: str) -> str | None:
    """Return the output of a program; None if it fails."""
    environment = {**os.environ}
    environment.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
    try:
        done = run_limited(command, limit_s=PROGRAM_TIMEOUT_S, variables=environment)
    except (OSError, RunTooLong):
        return None
    return done.output.strip() if done.code == 0 else None
