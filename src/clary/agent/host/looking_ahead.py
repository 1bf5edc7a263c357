"""Scan of the machine's system folders in the background, before a host needs its result.

Where: the agent starts the scan when it starts to prepare a job with namespaces that has no standby host. A host that
starts within the next seconds uses the result (`closed_files`); a host that starts later scans by itself. The scan runs
in a process of its own: it takes a tenth of a second, or more than a second if it is the machine's first scan.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import clary
from clary.base.limited_runs import RunTooLong, run_limited

_LIMIT_S = 60.0
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from clary.agent.host.mounts.shown_folders import look_at_system_folders; look_at_system_folders()"
)


def look_ahead() -> None:
    """Start the scan and return at once; do nothing without real root: the kernel then checks each access."""
    if os.geteuid() == 0:
        threading.Thread(target=_look, name="look-ahead", daemon=True).start()


def _look() -> None:
    sources = str(Path(clary.__file__).parents[1])
    try:
        run_limited([sys.executable, "-I", "-S", "-B", "-c", _START, sources], limit_s=_LIMIT_S)
    except (OSError, RunTooLong):
        return  # then hosts scan by themselves
