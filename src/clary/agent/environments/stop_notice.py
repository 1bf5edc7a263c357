"""The notice of a stop: a file with the reason and the time of the kill, readable by the program on SIGTERM.

Where: the supervisor writes it before it signals any process; `variables` passes its path to programs. Each host has
its own file. The program owns the folder, so a link in the file's place is not followed.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from clary.agent.environments.config_files import run_folder
from clary.base.beneath import Folder
from clary.base.clock import Clock
from clary.contract.ml_tree import MlTree

_NAME = "stop-notice.json"


def stop_notice_path(tree: MlTree) -> Path:
    """Return the path of the notice; the file exists only once a stop is ordered."""
    return run_folder(tree) / _NAME


def write_stop_notice(tree: MlTree, *, reason: str, grace_s: float, clock: Clock) -> None:
    """Write the notice atomically; a later notice replaces an earlier notice.

    It gives the end of the grace period by the wall clock and by the monotonic clock: monotonic time is the same for
    all processes of the machine and does not change when the time of day is set.

    Args:
        tree: of the host, as the agent sees it.
        reason: of the stop, as programs read it.
        grace_s: seconds from now to the kill.
        clock: source of both times.
    Raises: OSError, if the disk is full or the program has removed the folder; an earlier notice then remains.
    """
    deadline = clock.now() + timedelta(seconds=grace_s)
    notice = {
        "reason": reason,
        "deadline": deadline.isoformat(),
        "deadline_s": deadline.timestamp(),
        "deadline_monotonic_s": clock.monotonic() + grace_s,
        "grace_s": grace_s,
    }
    place = stop_notice_path(tree).relative_to(tree.root)
    with Folder.at(tree.root) as root:
        root.write(str(place), (json.dumps(notice) + "\n").encode("ascii"))
