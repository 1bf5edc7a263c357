"""Marks of a rehearsal, and the places where its programs record their samples, steps and printed lines.

Where: `clary rehearse` sets the variables in the Environment of the requests it makes; the service injects faults only
into jobs with the first; in the program `compat.clary_rehearsal` looks for it. The second names the hosts that get a
disk of their own, and its size in bytes: `2147483648 algo-1 algo-2`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

REHEARSAL_VARIABLE = "CLARY_REHEARSAL"
DISKS_VARIABLE = "CLARY_REHEARSAL_DISKS"
DISK_FOLDER = "disk"  # of a host's own disk, below the host's folder
RECORDS_PARTS = (".clary", "rehearsal")  # folder below /opt/ml
RECORD_SUFFIX = ".jsonl"
RECORD_PREFIX = "rehearsal-"  # of the files kept beside a host's logs


def is_rehearsal(request: Mapping[str, Any]) -> bool:
    """Whether a CreateTrainingJob request is that of a twin or a rehearsal."""
    return bool((request.get("Environment") or {}).get(REHEARSAL_VARIABLE))


def disks_value(hosts: Sequence[str], size_bytes: int) -> str:
    """Return the value of the variable that gives each of `hosts` a disk of its own."""
    return " ".join((str(size_bytes), *hosts))


def disk_bytes(request: Mapping[str, Any], host: str) -> int | None:
    """Return the size of the own disk of a host of a twin or a rehearsal; None for the machine's disk."""
    if not is_rehearsal(request):
        return None
    size, *hosts = str(request["Environment"].get(DISKS_VARIABLE) or "0").split() or ["0"]
    is_size = size.isascii() and size.isdigit() and int(size) > 0
    return int(size) if is_size and host in hosts else None
