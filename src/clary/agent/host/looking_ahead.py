"""A scan of the machine's system folders, beside other work, before a host needs its result.

Where: the agent begins it when it begins to prepare a job. A host that starts within the next seconds finds what was
found here (`closed_files`); one that starts later, or before this is done, looks by itself. In a process of its own:
it takes a tenth of a second of computing, a second or more on a machine where nobody has looked yet.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import clary

_LIMIT_S = 60.0
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from clary.agent.host.mounts.shown_folders import look_at_system_folders; look_at_system_folders()"
)


def look_ahead() -> None:
    """Begin the look and return; does nothing without real root, where the kernel judges every file by itself."""
    if os.geteuid() == 0:
        threading.Thread(target=_look, name="look-ahead", daemon=True).start()


def _look() -> None:
    sources = str(Path(clary.__file__).parents[1])
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _START, sources],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # hosts look by themselves
