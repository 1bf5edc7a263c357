"""Names of the cgroups of hosts.

Where: the agent creates the cgroup, and the engine searches for it when an attempt is released, so both need the same
name. Pure.
"""

from __future__ import annotations

import hashlib

_DIGEST_CHARACTERS = 6


def host_cgroup_name(job_name: str, attempt: int, *, host: str, work_folder: str) -> str:
    """Return `<job>-<attempt>-<host>-<digest>`.

    The digest is computed from `work_folder`, which is in the service's own state folder, because two services on one
    machine may run jobs of the same name at the same time.

    Args:
        job_name: letters, digits and hyphens.
        attempt: number of the attempt, from 1.
        host: algo-1.
        work_folder: the attempt's folder, exactly as in the launch plan.
    """
    digest = hashlib.sha256(work_folder.encode(errors="surrogateescape")).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{job_name}-{attempt}-{host}-{digest}"


def next_cgroup_name(host_cgroup: str) -> str:
    """Return the second cgroup name of a pool's host, for use while its previous program may still run.

    Args:
        host_cgroup: cgroup name of a pool's host.
    """
    return f"{host_cgroup}-next"


def rules_cgroup_name(host_cgroup: str) -> str:
    """Return the name of the cgroup of the rules that run next to a host's program."""
    return f"{host_cgroup}-rules"
