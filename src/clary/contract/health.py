"""Findings of health checks and their consequences: agents report findings, the service weighs them.

Where: `HostFacts.health` carries the findings of one host; `control.jobs.health` says which host or link is sick.
"""

from __future__ import annotations

from dataclasses import dataclass

from clary.base.string_enum import StrEnum

# largest accepted difference of clocks; times of lines and checkpoints of several hosts are compared
WARN_CLOCK_S = 2.0


def seconds_in_words(seconds: float) -> str:
    """Return by how much a clock is off: milliseconds where they matter, whole seconds where they do not."""
    return f"{seconds:.3f} s" if seconds < WARN_CLOCK_S else f"{seconds:.0f} s"


class FindingState(StrEnum):
    """Result of one check of a host or link."""

    OK = "ok"
    WARN = "warn"  # worth a look; nothing follows from it
    BAD = "bad"  # the job will fail or crawl
    SKIPPED = "skipped"  # not checked; the words say why
    PENDING = "pending"  # still being looked at, beside the program


class HealthAction(StrEnum):
    """Consequence of a sick host or link before the program starts."""

    WARN = "warn"  # it is reported
    REPLACE = "replace"  # the attempt ends, and is tried again


class Check(StrEnum):
    """Subject of a check: first a host by itself, then its links, one finding a peer."""

    DISK = "disk"
    MEMORY = "memory"
    CLOCK = "clock"
    GPU = "gpu"
    NAMES = "names"  # every host's name means its address
    PORT = "port"  # the port where ranks meet is free
    INTERFACE = "interface"  # the interface that reaches all peers
    COLLECTIVE = "collective"  # a sum over all hosts
    LINK = "link"  # the whole link, where all of it is well or nothing was measured
    ROUTE = "route"  # packets leave by the interface that they should
    REACH = "reach"
    DROP = "drop"  # a port whose packets vanish while others pass
    MTU = "mtu"
    LOSS = "loss"
    DELAY = "delay"
    RATE = "rate"


@dataclass(frozen=True, kw_only=True)
class HealthFinding:
    """One line of the verdict on a host."""

    check: Check
    state: FindingState
    host: str  # the host that found it; of a link, where packets start
    peer: str | None = None  # where they end; None for a check of the host by itself
    words: str = ""  # what was found, with what was expected where they differ
    cause: str = ""  # what most likely lies behind it; empty while all is well
    rate_mbit_s: float | None = None  # of a link, from host to peer, where it was measured
    clock_offset_s: float | None = None  # of a clock: how far it is ahead of the service's, where it was measured
