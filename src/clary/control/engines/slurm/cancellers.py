"""Finds the user that cancelled a job. Slurm 22.05 names the user in no list of jobs, but in two other places.

Where: `scheduler` calls it once for each cancelled job, only to name the user in messages. The accounting, if a cluster
has one, knows the user (`sacct`: CANCELLED by 1000). Otherwise the controller's log does, if the service can read it.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import re

from clary.base.errors import EngineError
from clary.control.engines.slurm.programs import SlurmPrograms

LIMIT_S = 5.0
MAX_LOG_BYTES = 1024 * 1024
_BY = re.compile(r"CANCELLED by ([0-9]{1,10})")


async def canceller(programs: SlurmPrograms, leader_id: int, *, has_accounting: bool, log_path: str) -> str:
    """Return the name of the user that cancelled a job; empty if unknown.

    Args:
        programs: runs sacct.
        leader_id: id of the job.
        has_accounting: whether the cluster has accounting.
        log_path: path of the log of the controller; empty if it has no log.
    """
    if has_accounting and programs.has("sacct"):
        options = ("--noheader", "--parsable2", "--allocations", f"--jobs={leader_id}", "--format=State")
        try:
            done = await programs.run("sacct", *options, limit_s=LIMIT_S)
        except EngineError:
            return ""
        return user_in_state(done.output)
    return await asyncio.to_thread(_user_in_log, log_path, leader_id) if log_path else ""


def user_in_state(text: str) -> str:
    """Return the user named in a job state that sacct printed; empty if the state names no user."""
    match = _BY.search(text)
    return "" if match is None else _name(int(match[1]))


def user_in_log(text: str, leader_id: int) -> str:
    """Return the user whose request to kill a job is the last in a log; empty if there is no such request."""
    # A line must begin with its time: job names, which any user chooses, occur later in a line.
    pattern = (
        rf"^\[[0-9T:.-]+\] _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId={leader_id}(?:\+[0-9]+\([0-9]+\))? uid ([0-9]+)"
    )
    found = re.findall(pattern, text, re.MULTILINE)
    return _name(int(found[-1])) if found else ""


def _user_in_log(path: str, leader_id: int) -> str:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - MAX_LOG_BYTES))
            return user_in_log(file.read(MAX_LOG_BYTES).decode(errors="replace"), leader_id)
    except OSError:
        return ""


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
