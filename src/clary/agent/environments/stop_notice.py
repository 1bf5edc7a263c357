"""The notice of a stop: a file that a program can read when SIGTERM comes, with the reason and the time of the kill.

Where: the supervisor has it written before it signals anybody; `variables` tells programs where it will lie. Each host
has a file of its own. The program owns the folder, so nothing that it may have put in the file's place is followed.
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
    """Return where the notice lies once a stop is ordered; before that there is no such file."""
    return run_folder(tree) / _NAME


def write_stop_notice(tree: MlTree, *, reason: str, grace_s: float, clock: Clock) -> None:
    """Write the notice, whole or not at all; a later one takes the place of an earlier one.

    It says the end of the grace by two clocks: monotonic time, which means the same to all processes of the machine,
    stays right when the time of day is set meanwhile.

    Args:
        tree: of the host, as the agent sees it.
        reason: of the stop, as programs read it.
        grace_s: from now to the kill.
        clock: gives both times.
    Raises: OSError, when the disk is full or the program has removed the folder; an earlier notice is still there then.
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
