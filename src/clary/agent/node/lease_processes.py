"""Search for the processes of a lease, and their end.

Where: the keeper ends the processes left by its boot; the daemon checks again, and ends the processes itself if a
keeper was killed. A keeper adopts every orphan among its descendants, so the lease consists of its descendants. Without
a keeper the lease consists of all processes with the lease's mark in the environment, their descendants, and the
processes that the daemon adopted at the keeper's death. If daemon and keeper were both killed, an orphan without the
mark cannot be found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Container, Iterable

from clary.base.processes import (
    ProcessEntry,
    ProcessId,
    descendants_in,
    exec_deadline,
    has_variable,
    read_process_list,
)
from clary.contract.box_protocol import MARK

END_LIMIT_S = 20.0  # for the end of killed processes; freeing much memory takes seconds
_LOOK_S = 0.02
_PR_SET_CHILD_SUBREAPER = 36


def marked(lease: str, known: Iterable[ProcessId] = (), children: Container[int] | None = None) -> list[ProcessId]:
    """Return the live processes of a lease, except this process.

    Args:
        lease: id of the lease.
        known: recorded processes (keeper, boot).
        children: this process's own children; any other child was adopted at a keeper's death and belongs to a lease.
            None if this process adopts no orphans.
    """
    entries = read_process_list()
    deadline, me = exec_deadline(), os.getpid()
    roots = {process.pid for process in known if process.is_alive() and process.pid in entries}
    if children is not None:
        adopted = {pid for pid, entry in entries.items() if entry.parent == me and pid not in children}
        _reap(pid for pid in adopted if entries[pid].has_ended)
        roots |= adopted
    roots |= {pid for pid, entry in entries.items() if not entry.has_ended and has_variable(pid, MARK, lease, deadline)}
    return _alive(entries, roots | descendants_in(entries, roots))


def below(ancestor: int) -> list[ProcessId]:
    """Return the live descendants of a process."""
    entries = read_process_list()
    return _alive(entries, descendants_in(entries, {ancestor}))


def kill(processes: Iterable[ProcessId]) -> None:
    """Send SIGKILL to each of these processes that still exists; other users' processes are skipped."""
    for process in processes:
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(process.pid)
            try:
                if process.is_alive():
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)


def end_marked(
    lease: str,
    known: Iterable[ProcessId] = (),
    children: Container[int] | None = None,
    *,
    limit_s: float = END_LIMIT_S,
) -> int:
    """Kill all processes of a lease; return the number of processes left at the time limit.

    Args:
        lease: id of the lease.
        known: as for `marked`.
        children: as for `marked`.
        limit_s: longest wait.
    """
    deadline_s = time.monotonic() + limit_s
    known = tuple(known)
    while found := marked(lease, known, children):
        kill(found)
        if time.monotonic() > deadline_s:
            return len(found)
        time.sleep(_LOOK_S)
    return 0


def adopt_orphans() -> None:
    """Let this process adopt orphans among its descendants. Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {os.strerror(number)}")


def _reap(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _alive(entries: dict[int, ProcessEntry], pids: Iterable[int]) -> list[ProcessId]:
    me = os.getpid()
    return [
        ProcessId(pid, str(entries[pid].started_at)) for pid in sorted(pids) if pid != me and not entries[pid].has_ended
    ]
