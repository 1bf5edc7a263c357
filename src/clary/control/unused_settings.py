"""Sentences on settings that were set and have no effect with the present engine. Pure.

Where: `clary up` and `clary doctor` print them, and the service logs them.
"""

from __future__ import annotations

from collections.abc import Mapping

from clary.control.settings import Settings

LOCAL, SLURM, BOXES = "local", "slurm", "boxes"
_REACH = "programs reach the same networks as their nodes"
_WHOLE = "a host has a whole node"
# Setting -> engines with which it has no effect, and the reason.
_UNUSED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "reachable_networks": ((SLURM, BOXES), _REACH),
    "max_hosts": ((SLURM, BOXES), "the number of nodes is the limit"),
    "memory_per_host_bytes": ((SLURM, BOXES), _WHOLE),
    "memory_overcommit": ((SLURM, BOXES), _WHOLE),
    "advertise_url": ((LOCAL,), "hosts are this machine's own"),
    "node_scratch": ((LOCAL, BOXES), "`clary hosts add --scratch` names a box's"),
    "node_python": ((LOCAL, BOXES), "`clary hosts add --python` names a box's"),
    "slurm": ((LOCAL, BOXES), "no hosts come from Slurm"),
}


def unused_settings(settings: Settings) -> list[str]:
    """Return a sentence for each setting that was set and has no effect with the engine of `settings`."""
    default = Settings()
    found = [
        f"Setting {name} has no effect with engine {settings.engine}: {why}."
        for name, (engines, why) in _UNUSED.items()
        if settings.engine in engines and getattr(settings, name) != getattr(default, name)
    ]
    if settings.engine != LOCAL and settings.isolation == "processes":
        found.append(
            f"Setting isolation = processes has no effect with engine {settings.engine}: each node decides itself."
        )
    if settings.engine != LOCAL and not settings.internet:
        found.append(
            f"Setting internet only keeps the service from public_buckets with engine {settings.engine}: {_REACH}."
        )
    return found
