"""Variables that mark a rehearsal, and the files in which its programs record samples, steps and printed lines.

Where: `clary rehearse` sets the variables in the Environment of its requests. The service injects faults only into jobs
with the first variable, which `compat.clary_rehearsal` checks in the program. The second variable names the size in
bytes of a host's own disk, and the hosts that get one: `2147483648 algo-1 algo-2`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

REHEARSAL_VARIABLE = "CLARY_REHEARSAL"
DISKS_VARIABLE = "CLARY_REHEARSAL_DISKS"
DISK_FOLDER = "disk"  # mount point of a host's own disk, below the host's folder
RECORDS_PARTS = (".clary", "rehearsal")  # folder below /opt/ml
RECORD_SUFFIX = ".jsonl"
RECORD_PREFIX = "rehearsal-"  # name of the files that are kept next to a host's logs


def is_rehearsal(request: Mapping[str, Any]) -> bool:
    """Whether a CreateTrainingJob request belongs to a rehearsal, or to the uninterrupted twin of one."""
    return bool((request.get("Environment") or {}).get(REHEARSAL_VARIABLE))


def disks_value(hosts: Sequence[str], size_bytes: int) -> str:
    """Return the value of the variable that gives each of `hosts` a disk of its own."""
    return " ".join((str(size_bytes), *hosts))


def disk_bytes(request: Mapping[str, Any], host: str) -> int | None:
    """Return the size of a host's own disk in a twin or a rehearsal; None if the host uses the machine's disk."""
    if not is_rehearsal(request):
        return None
    size, *hosts = str(request["Environment"].get(DISKS_VARIABLE) or "0").split() or ["0"]
    is_size = size.isascii() and size.isdigit() and int(size) > 0
    return int(size) if is_size and host in hosts else None
