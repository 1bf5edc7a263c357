"""Ends exactly the processes of an attempt, and verifies their end.

Where: `attempt_processes`, `attempt_leftovers`, `rehearsal_faults` and `engine` call it. A process is identified by its
pid together with its recorded start time (`base.processes`), so that another process with a reused pid is never
signalled. The functions block: call them in a thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from clary.base.passing_errors import is_passing
from clary.base.processes import ProcessId, exec_deadline, has_variable, live_descendants

KILL_TIMEOUT_S = 10.0  # from SIGKILL to exit; a process that takes longer is stuck in the kernel


def kill(process: ProcessId, *, timeout_s: float = KILL_TIMEOUT_S) -> bool:
    """End the process with SIGKILL and wait until it has ended; return whether it was alive.

    Raises: OSError if the signal is refused; TimeoutError if the process outlives `timeout_s`.
    """
    if not process.is_alive():
        return False
    if not process.kill(timeout_s=timeout_s):
        raise TimeoutError(f"process {process.pid} is still there {timeout_s:g} s after SIGKILL")
    return True


def wait_until_gone(processes: Iterable[ProcessId], *, timeout_s: float) -> list[ProcessId]:
    """Wait for processes that end by themselves; return the processes that are alive after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    alive = [process for process in processes if process.is_alive()]
    while alive and time.monotonic() < deadline:
        time.sleep(0.02)
        alive = [process for process in alive if process.is_alive()]
    return alive


def descendants(ancestor: ProcessId) -> list[ProcessId]:
    """Return the descendants of `ancestor`, if it is alive; some may have ended meanwhile."""
    if not ancestor.is_alive():
        return []
    below = live_descendants(ancestor.pid)
    return [ProcessId(pid, str(entry.started_at)) for pid, entry in below.items() if pid != os.getpid()]


def in_network_namespaces(inodes: Iterable[int]) -> list[ProcessId]:
    """Return the processes whose network namespace is one of these; the caller ensures that these still exist.

    An inode number identifies a namespace only while the namespace exists, here: while the job's anchor lives.
    """
    wanted = set(inodes)
    found = []
    for pid in _pids():
        process = ProcessId.of(pid)
        try:
            if process is not None and os.stat(f"/proc/{pid}/ns/net").st_ino in wanted and process.is_alive():
                found.append(process)
        except OSError:
            continue  # ended meanwhile, or of another user and so not of a job
    return found


def in_cgroups(folders: Iterable[str]) -> list[ProcessId]:
    """Return the processes in these cgroups and in the cgroups below them, without zombies.

    Raises: OSError if the machine refuses to list them at the moment, for example because of too many open files.
    """
    found = {}
    for top in folders:
        for folder, _, _ in os.walk(top, onerror=_pass_on):
            try:
                with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
                    pids = [int(line) for line in file]
            except OSError as error:
                _pass_on(error)
                continue  # removed meanwhile
            for pid in pids:
                if pid != os.getpid() and (process := ProcessId.of(pid)) is not None:
                    found[pid] = process
    return list(found.values())


def _pass_on(error: OSError) -> None:
    """Raise an error that says nothing about a cgroup: its processes must not be taken for ended."""
    if is_passing(error):
        raise error


def with_variable(name: str, value: str) -> list[ProcessId]:
    """Return the processes started with this environment variable; only the user's own processes are readable."""
    found = []
    deadline = exec_deadline()
    for pid in _pids():
        process = ProcessId.of(pid)
        if process is not None and has_variable(pid, name, value, deadline) and process.is_alive():
            found.append(process)
    return found


def _pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]
