"""The notice of a stop: a file that a program can read when SIGTERM comes, with the reason and the time of the kill.

Where: the supervisor has it written before it signals anybody; `variables` tells programs where it will lie. Each host
has a file of its own. The program owns the folder, so nothing that it may have put in the file's place is followed.
"""

from __future__ import annotations

import contextlib
import json
import os
from datetime import datetime, timedelta
from pathlib import Path

from clary.agent.environments.config_files import run_folder
from clary.contract.ml_tree import MlTree

_NAME = "stop-notice.json"
_PART_NAME = ".stop-notice.json.part"
_READABLE = 0o644


def stop_notice_path(tree: MlTree) -> Path:
    """Return where the notice lies once a stop is ordered; before that there is no such file."""
    return run_folder(tree) / _NAME


def write_stop_notice(tree: MlTree, *, reason: str, grace_s: float, now: datetime) -> None:
    """Write the notice, whole or not at all; a later one takes the place of an earlier one.

    Raises: OSError, when the disk is full or the program has removed the folder; an earlier notice is still there then.
    """
    deadline = now + timedelta(seconds=grace_s)
    notice = {
        "reason": reason,
        "deadline": deadline.isoformat(),
        "deadline_s": deadline.timestamp(),
        "grace_s": grace_s,
    }
    folder = os.open(run_folder(tree), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_PART_NAME, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(_PART_NAME, flags, _READABLE, dir_fd=folder), "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), _READABLE)  # whatever the agent's umask is
            file.write(json.dumps(notice) + "\n")
        os.rename(_PART_NAME, _NAME, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)
