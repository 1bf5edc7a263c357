"""Sentences that tell which parts of this machine and its network the owner's settings open to jobs.

Where: `clary describe` shows them for a job, `clary doctor` and `clary up` for the service. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from clary.control.egress.entries import Reachable
from clary.control.permissions.grants import FULL
from clary.control.settings import Settings

FULL_ACCESS = (
    "Roles are names here: a job's key gives access to every bucket and job of this service (setting job_api_access)."
)
OWN_ACCESS = "A job's key permits the S3 places of the job's request, its own outputs, logs and runs, and no other job."


def shared_by_settings(settings: Settings, reachable: Sequence[Reachable], *, has_network: bool = True) -> list[str]:
    """Return one sentence for each access that settings open beyond the access that every job has.

    Args:
        settings: settings of the service.
        reachable: targets in the owner's network that programs reach.
        has_network: False for a job with EnableNetworkIsolation, which has no network.
    """
    sentences = [FULL_ACCESS] if settings.job_api_access == FULL else []
    if reachable and has_network:
        places = ", ".join(str(entry) for entry in reachable)
        sentences.append(
            f"Programs reach services of this machine's network: {places} (setting reachable_networks, and package "
            "indexes that pip and uv use here)."
        )
    return sentences
