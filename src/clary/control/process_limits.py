"""Limits of this machine (`ulimit`) on the service's process, which its object store and jobs inherit.

Where: `server.__main__` raises them at the start; `clary up` and `clary doctor` name those that are too low.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

FILES_PER_CONNECTION = 2  # an S3 stream needs another connection to the store
OTHER_FILES = 256  # for logs, the database, agents
LEAST_CONNECTIONS = 16
FEW_CONNECTIONS = 256  # fewer are named: a client of S3 opens 10 and more, and each host some
FEW_PROCESSES = 1024  # a job with one host and its service, store and tools have up to some hundred threads

_RAISED = (resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC)
_AGAIN = "then run clary down and clary up"


def raise_limits() -> None:
    """Raise limits on the size of files and the number of processes as far as this process may."""
    for kind in _RAISED:
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (hard, hard))


def connections_within(num_files: int, wanted: int) -> int:
    """Return the number of connections, at most `wanted`, that `num_files` open files (or RLIM_INFINITY) allow."""
    if num_files == resource.RLIM_INFINITY:
        return wanted
    return max(LEAST_CONNECTIONS, min(wanted, (num_files - OTHER_FILES) // FILES_PER_CONNECTION))


def low_limits(max_connections: int, *, pid: int = 0) -> list[str]:
    """Return a sentence with the remedy for each limit of a service that is too low.

    Args:
        max_connections: setting max_connections.
        pid: the service; 0 is this process, from which a service would be started.
    """
    try:
        return _low(max_connections, lambda kind: resource.prlimit(pid, kind))
    except OSError:  # the process has ended, or is another user's
        return []


def _low(max_connections: int, limits: Callable[[int], tuple[int, int]]) -> list[str]:
    found = []
    _, files = limits(resource.RLIMIT_NOFILE)
    if (num := connections_within(files, max_connections)) < min(max_connections, FEW_CONNECTIONS):
        found.append(
            f"only {files} files may be open at once (ulimit -n), so the service takes {num} connections, half of them "
            f"reserved for this machine, instead of {max_connections} (setting max_connections); "
            f"raise the limit, {_AGAIN}"
        )
    _, file_bytes = limits(resource.RLIMIT_FSIZE)
    if file_bytes != resource.RLIM_INFINITY:
        found.append(
            f"no file may be larger than {file_bytes} bytes (ulimit -f): the object store, the database and jobs fail "
            f"to write more, whatever space the disk has; set it to unlimited, {_AGAIN}"
        )
    soft, _ = limits(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        found.append(
            f"a process may have {soft} bytes of address space (ulimit -v), of which the object store and torch "
            f"reserve far more than they use; they may fail with 'out of memory'; set it to unlimited, {_AGAIN}"
        )
    _, processes = limits(resource.RLIMIT_NPROC)
    if processes != resource.RLIM_INFINITY and processes < FEW_PROCESSES:
        found.append(
            f"this user may have {processes} processes and threads (ulimit -u), and jobs need hundreds; raise the "
            f"limit, {_AGAIN}"
        )
    return found
