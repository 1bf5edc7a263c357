"""Sentences on leftovers of released attempts, with their remedies, and on anchors whose folder is gone.

Where: `LocalEngine.leftovers` calls it in a thread, for `clary doctor`. A leftover is reported only if it certainly
belongs to an attempt of this state folder. The evidence is the engine's mark in a process's environment, the name of a
cgroup, or a path below the attempt's folder. An attempt that is not released has no leftovers yet. Shared memory whose
owner is not certain is reported by `unclaimed_memory` instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from clary.base.errors import EngineError
from clary.base.processes import ProcessId, exec_deadline, read_arguments
from clary.contract.limits.cgroup_names import host_cgroup_name, next_cgroup_name, rules_cgroup_name
from clary.control.engines.local import anchors, attempt_record, cleaning, killing, machine_census
from clary.control.engines.local.agent_processes import MARK_VARIABLE
from clary.control.engines.local.attempt_record import AttemptRecord
from clary.control.engines.local.leftover_things import Kind, Thing
from clary.control.engines.local.network.network_spec import RELEASED_FILE

_REMOVAL_S = 60.0  # time after a release in which the attempt's folders may still be being removed
# tolerance for comparing the time stamps of a segment and of the attempt's files, which come from coarser clocks
_SLACK_S = 2.0


def leftovers(jobs: Path) -> list[str]:
    """Return sentences on leftovers of released attempts below `jobs`, and on anchors whose folder is gone."""
    sentences = []
    for folder in attempt_record.attempt_folders(jobs):
        if attempt_record.is_released(folder):
            sentences += _of_released(folder)
    return sentences + [
        f"Process {process.pid} holds the network of a job whose folder {folder} is gone; it ends by itself soon."
        for process, folder in _anchors_below(jobs)
        if not folder.is_dir()
    ]


def unclaimed_memory(jobs: Path) -> list[str]:
    """Return sentences on unused shared memory of this user, if jobs have run as plain processes.

    Such jobs use the machine's /dev/shm. The kernel does not record the creator of a segment, so the creator may be any
    program of the user. The sentences name the jobs that ran when a segment was made.
    """
    plain = [
        attempt for folder in attempt_record.attempt_folders(jobs) if (attempt := _plain_attempt(folder)) is not None
    ]
    if not plain:
        return []
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    used = machine_census.shared_memory_users(pids)
    sentences = []
    for thing in machine_census.shared_memory():
        try:
            facts = os.lstat(thing.name)
        except FileNotFoundError:
            continue
        made_at = min(facts.st_mtime, facts.st_ctime)
        during = sorted(name for name, start, end in plain if start - _SLACK_S <= made_at <= end + _SLACK_S)
        if thing.name not in used and facts.st_uid == os.geteuid() and during:
            sentences.append(
                f"{thing.name} ({thing.detail}) is used by nobody and was written while {', '.join(during)} ran as "
                f"plain processes; if it is not of another program of yours, remove it: {thing.removal}"
            )
    return sentences


def folders_in(attempt_folder: Path) -> list[str]:
    """Return the names of an attempt's folders: the folders of its hosts, and shared folders."""
    return sorted(path.name for path in attempt_folder.iterdir() if path.is_dir() and not path.is_symlink())


def cgroups_of(attempt_folder: Path, hosts: Sequence[str], record: AttemptRecord | None) -> list[str]:
    """Return the existing cgroups of these hosts, at all paths at which a service of this attempt may have made them.

    Args:
        attempt_folder: folder of an attempt or a pool; cgroups are named after it.
        hosts: names of the hosts.
        record: attempt's record, with the service's cgroup folders at the time when agents were started; None searches
            only below this process's own cgroup.
    """
    places = (*(record.cgroup_places if record is not None else ()), *cleaning.own_cgroup_places())
    job_name, attempt = attempt_folder.parent.name, int(attempt_folder.name)
    work_folder = str(attempt_folder)
    names = [host_cgroup_name(job_name, attempt, host=host, work_folder=work_folder) for host in hosts]
    names += [next_cgroup_name(name) for name in names]
    return cleaning.host_cgroups(places, [*names, *(rules_cgroup_name(name) for name in names)])


def _of_released(folder: Path) -> list[str]:
    name = f"{folder.parent.name}, attempt {folder.name}"
    try:
        record = attempt_record.read_record(folder)
    except EngineError as error:
        return [f"Job {name} is released and its record is damaged: {error.message}; nothing can be said of it."]
    hosts = folders_in(folder)
    cgroups = cgroups_of(folder, hosts, record)
    processes = killing.in_cgroups(cgroups)
    if record is not None and record.boot_id == attempt_record.boot_id():
        processes += killing.with_variable(MARK_VARIABLE, record.mark)
    sentences = [
        f"Job {name} is released and its process {process.pid} still runs; end it: kill -9 {process.pid}"
        for process in dict.fromkeys(processes)
    ]
    users = machine_census.shared_memory_users(process.pid for process in processes)
    things = [Thing(kind=Kind.SHARED_MEMORY, name=path) for path in sorted(users)]
    sentences += [
        f"Job {name} is released and its process {min(users[thing.name])} still uses shared memory {thing.name}; "
        f"end that process, then remove it: {thing.removal}"
        for thing in things
    ]
    sentences += [
        f"Job {name} is released and {point} is still mounted; detach it: umount -l {point}"
        for point in cleaning.mounts_below(folder)
    ]
    sentences += [
        f"Job {name} is released and its cgroup {path} is still there; remove it: rmdir {path}" for path in cgroups
    ]
    is_being_removed = abs(time.time() - (folder / RELEASED_FILE).stat().st_mtime) < _REMOVAL_S
    for host in () if is_being_removed else hosts:
        for path in sorted((folder / host).iterdir()):
            if path.is_dir() and not path.is_symlink():
                thing = Thing(kind=Kind.FOLDER, name=str(path))
                sentences.append(
                    f"Job {name} is released and its folder {path} is still there; remove it: {thing.removal}"
                )
    return sentences


def _plain_attempt(folder: Path) -> tuple[str, float, float] | None:
    """Return name, start and end of an ended attempt whose hosts were plain processes; None for any other folder."""
    released = folder / RELEASED_FILE
    try:
        record = attempt_record.read_record(folder)
        if record is None or record.master_port is None:
            return None
        # The record is written at the attempt's start, and again by a service in another cgroup. The job's folder was
        # last changed when the folder of its latest attempt was made.
        start = min((folder / attempt_record.RECORD_FILE).stat().st_mtime, folder.parent.stat().st_mtime)
        return folder.parent.name, start, released.stat().st_mtime
    except (OSError, EngineError):
        return None


def _anchors_below(jobs: Path) -> list[tuple[ProcessId, Path]]:
    """Return the anchors whose networks were made for attempts below `jobs`, with the attempts' folders."""
    found = []
    deadline = exec_deadline()
    for name in os.listdir("/proc"):
        process = ProcessId.of(int(name)) if name.isdigit() else None
        command = read_arguments(process.pid, deadline) if process is not None else []
        if process is not None and len(command) > 1 and command[-2] == anchors.ANCHOR_COMMAND[-1]:
            folder = Path(command[-1]).parent
            if folder.is_relative_to(jobs):
                found.append((process, folder))
    return found
