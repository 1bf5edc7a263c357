"""Memory limits of a job's hosts on this machine, and advice if a limit is too small. Pure.

Where: `placement` uses it when it maps a job's hosts and when it decides whether a job may start. The rule has three
steps. The machine keeps a reserve for the system and the service. A host demands the memory of its instance type, at
most setting memory_per_host_bytes, and at most the machine's memory without the reserve. If the hosts of one job
together demand more than that memory times setting memory_overcommit, the smallest demands are met and the other hosts
get equal parts. So a host's limit depends only on the job, the machine and the settings, never on other jobs: a job
that fitted yesterday fits today. Why: docs/adr/0027-memory-of-hosts.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from clary.control.settings import SETTINGS_FILE

MIB = 1024**2
GIB = 1024**3

RESERVE_SHARE = 0.1  # share of the machine's memory for the system, the service, its object store and agents
LEAST_RESERVE_BYTES = GIB  # an embedded object store under load takes about 650 MiB, the service 200 MiB
MOST_RESERVE_BYTES = 16 * GIB
MOST_RESERVE_SHARE = 0.25  # largest share of the memory that is reserved, on a machine too small for the least reserve


class Bound(StrEnum):
    """Bound that decided the memory of a host."""

    TYPE = "type"  # the host gets the memory of its type
    MACHINE = "machine"  # the host gets all memory that the machine has for jobs
    SHARED = "shared"  # the hosts of its job divide the machine's memory
    SETTING = "setting"  # setting memory_per_host_bytes is less than the other bounds


def reserve_bytes(memory_bytes: int) -> int:
    """Return the bytes that jobs cannot use: a tenth of the machine's, from 1 to 16 GiB, but at most a quarter."""
    wanted = min(max(int(memory_bytes * RESERVE_SHARE), LEAST_RESERVE_BYTES), MOST_RESERVE_BYTES)
    return min(wanted, int(memory_bytes * MOST_RESERVE_SHARE))


def fair_shares(wanted: Sequence[int], total: int) -> list[int]:
    """Divide `total` bytes so that no host gets more than it wants and only the largest demands are cut.

    Returns:
        One number for each of `wanted`, rounded to whole MiB if less than wanted; their sum is at most `total`.
    """
    shares = [0] * len(wanted)
    left, smallest_first = total, sorted(range(len(wanted)), key=lambda index: wanted[index])
    for position, index in enumerate(smallest_first):
        part = left // (len(wanted) - position)
        shares[index] = wanted[index] if wanted[index] <= part else max(part // MIB * MIB, min(part, MIB))
        left -= shares[index]
    return shares


def limit_of(most: int, *, of_machine: int, without_setting: int) -> Bound:
    """Return the bound that limits a host of any type to `most` bytes; differences below 1 MiB are ignored.

    Args:
        most: bytes that the host can get.
        of_machine: bytes that the machine has for jobs.
        without_setting: bytes that the host could get if memory_per_host_bytes were not set.
    """
    if of_machine - most < MIB:
        return Bound.MACHINE
    return Bound.SETTING if without_setting - most >= MIB else Bound.SHARED


def note_of(bound: Bound, *, instance_type: str, promised: int, given: int, of_machine: int, num_hosts: int) -> str:
    """Return a sentence on the difference between a host's memory and its type's; empty without a difference.

    Args:
        bound: cause of the difference; the result is empty for `Bound.TYPE`.
        instance_type: as the request names it.
        promised: memory of the type in bytes.
        given: memory of the host in bytes.
        of_machine: bytes that the machine has for jobs.
        num_hosts: number of hosts of the job.
    """
    why = {
        Bound.TYPE: "",
        Bound.MACHINE: "all that this machine has for jobs",
        Bound.SHARED: f"the {num_hosts} hosts of the job divide the {gib(of_machine)} that this machine has for jobs",
        Bound.SETTING: "setting memory_per_host_bytes",
    }[bound]
    return f"{instance_type} has {gib(promised)} of memory; here a host may use {gib(given)} ({why})" if why else ""


def advice_of(bound: Bound, *, instance_type: str, promised: int, most: int, without_setting: int) -> str:
    """Return advice for a user of this machine whose host had too little memory.

    Args:
        bound: bound that keeps the host from more memory.
        instance_type: instance type of the host.
        promised: memory of that type in bytes.
        most: bytes that this host would get with the largest type, next to the other hosts of its job.
        without_setting: likewise, if memory_per_host_bytes were not set.
    """
    if bound is Bound.TYPE:
        return (
            f"an instance type with more memory gives it up to {gib(most)} on this machine, as does memory_gib "
            f'in [instance_types."{instance_type}"] of {SETTINGS_FILE}'
        )
    if bound is Bound.SETTING:
        beyond = f" (above {gib(promised)} with an instance type that has more)" if promised < without_setting else ""
        return f"setting memory_per_host_bytes limits every host here: raise it, up to {gib(without_setting)}{beyond}"
    less = "use less of it, with smaller batches or fewer processes for instance, or a machine with more"
    if bound is Bound.MACHINE:
        return f"that is all that this machine has for jobs, and no instance type changes it: {less}"
    return (
        "the hosts of the job divide what this machine has for jobs, and no instance type changes it: fewer hosts get "
        f"more each; or {less}"
    )


def gib(size_bytes: int) -> str:
    """Format a size in GiB, with three digits."""
    return f"{size_bytes / GIB:.3g} GiB" if size_bytes < 100 * GIB else f"{size_bytes / GIB:.0f} GiB"
