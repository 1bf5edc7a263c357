"""End exactly the processes of an attempt, and verify their end.

Where: `attempt_processes`, and `LocalEngine.release` for the anchor. A process counts only with the start time that was
recorded with its pid (`base.processes`); a pid that was reused by another process is never signalled. All of this
blocks: call it in a thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from clary.base.processes import ProcessId, exec_deadline, live_descendants, read_variables

KILL_TIMEOUT_S = 10.0  # SIGKILL to exit; longer means a process stuck in the kernel


def kill(process: ProcessId, *, timeout_s: float = KILL_TIMEOUT_S) -> bool:
    """End the process with SIGKILL and wait until it is gone; return whether it was alive.

    Raises: OSError if the signal is refused; TimeoutError if the process outlives `timeout_s`.
    """
    if not process.is_alive():
        return False
    if not process.kill(timeout_s=timeout_s):
        raise TimeoutError(f"process {process.pid} is still there {timeout_s:g} s after SIGKILL")
    return True


def wait_until_gone(processes: Iterable[ProcessId], *, timeout_s: float) -> list[ProcessId]:
    """Wait for processes that end by themselves; returns the ones still alive after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    alive = [process for process in processes if process.is_alive()]
    while alive and time.monotonic() < deadline:
        time.sleep(0.02)
        alive = [process for process in alive if process.is_alive()]
    return alive


def descendants(ancestor: ProcessId) -> list[ProcessId]:
    """Return the processes below `ancestor`, if that is alive; some may have ended meanwhile."""
    if not ancestor.is_alive():
        return []
    below = live_descendants(ancestor.pid)
    return [ProcessId(pid, str(entry.started_at)) for pid, entry in below.items() if pid != os.getpid()]


def in_network_namespaces(inodes: Iterable[int]) -> list[ProcessId]:
    """Return the processes whose network namespace is one of these; the caller must know that they still exist.

    An inode number names a namespace only while something holds it, here: while the job's anchor lives.
    """
    wanted = set(inodes)
    found = []
    for pid in _pids():
        process = ProcessId.of(pid)
        try:
            if process is not None and os.stat(f"/proc/{pid}/ns/net").st_ino in wanted and process.is_alive():
                found.append(process)
        except OSError:
            continue  # ended meanwhile, or of another user and so of no job
    return found


def in_cgroups(folders: Iterable[str]) -> list[ProcessId]:
    """Return the processes in these cgroups and their descendants, without zombies."""
    found = {}
    for top in folders:
        for folder, _, _ in os.walk(top):
            try:
                with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
                    pids = [int(line) for line in file]
            except OSError:
                continue  # removed meanwhile
            for pid in pids:
                if pid != os.getpid() and (process := ProcessId.of(pid)) is not None:
                    found[pid] = process
    return list(found.values())


def with_variable(name: str, value: str) -> list[ProcessId]:
    """Return the processes that were started with this environment variable; only the user's own are readable."""
    wanted = f"{name}={value}".encode()
    found = []
    deadline = exec_deadline()
    for pid in _pids():
        process = ProcessId.of(pid)
        if process is not None and wanted in read_variables(pid, deadline) and process.is_alive():
            found.append(process)
    return found


def _pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]
