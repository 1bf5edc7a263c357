"""Sizes of the disks that a rehearsal's hosts get for disk-full faults. Pure.

Where: `clary rehearse` checks them before the jobs start. Twin and rehearsal have the same disks: a disk that is too
small for the job itself already fails the twin.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from clary.base.errors import ContractError, Fault
from clary.control.rehearsal.faults import FaultKind, PlannedFault

DEFAULT_BYTES = 2 * 1024**3
SMALLEST_BYTES = 16 * 1024**2  # a smaller disk may be full with the job's sources alone
_UNITS = {"MiB": 1024**2, "GiB": 1024**3}


def parse_size(text: str) -> int:
    """Parse a value of `--disk-size` into bytes. Raises: ContractError naming the valid forms."""
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(MiB|GiB)", text.strip())
    size_bytes = 0 if found is None else int(float(found[1]) * _UNITS[found[2]])
    if size_bytes < SMALLEST_BYTES:
        raise ContractError(
            f"--disk-size: expected 2GiB or 500MiB, at least {in_words(SMALLEST_BYTES)}, got {text[:40]!r}",
            fault=Fault.USER,
        )
    return size_bytes


def disk_hosts(faults: Sequence[PlannedFault]) -> tuple[str, ...]:
    """Return the hosts that need a disk of their own."""
    return tuple(sorted({host for fault in faults if fault.kind is FaultKind.DISK_FULL for host in fault.hosts}))


def check_disks(hosts: Sequence[str], *, size_bytes: int, num_jobs: int, largest_bytes: int) -> None:
    """Refuse disks that are too large for the machine's memory, which holds them.

    Args:
        hosts: hosts of one job; each gets a disk.
        size_bytes: size of each disk.
        num_jobs: number of such jobs that run at once.
        largest_bytes: maximum total size of all disks in bytes.
    """
    needed_bytes = len(hosts) * num_jobs * size_bytes
    if needed_bytes > largest_bytes:
        number = len(hosts) * num_jobs
        raise ContractError(
            f"--disk-size: {number} disk{('' if number == 1 else 's')} of {in_words(size_bytes)} would "
            "take more than half of the machine's free memory, which holds them: all disks together may "
            f"take at most {in_words(largest_bytes)}; give a smaller --disk-size",
            fault=Fault.USER,
        )


def in_words(size_bytes: int) -> str:
    """Return `2 GiB` or `500 MiB`."""
    unit = "GiB" if size_bytes >= _UNITS["GiB"] else "MiB"
    return f"{round(size_bytes / _UNITS[unit], 1):g} {unit}"
