"""Findings of health checks and their consequences: agents report findings, the service weighs them.

Where: `HostFacts.health` carries the findings of one host; `control.jobs.health` says which host or link is sick.
"""

from __future__ import annotations

from dataclasses import dataclass

from clary.base.string_enum import StrEnum

# largest accepted difference of clocks; times of lines and checkpoints of several hosts are compared
WARN_CLOCK_S = 2.0


def seconds_in_words(seconds: float) -> str:
    """Return the difference of a clock in words: milliseconds if small, else whole seconds."""
    return f"{seconds:.3f} s" if seconds < WARN_CLOCK_S else f"{seconds:.0f} s"


class FindingState(StrEnum):
    """Result of one check of a host or link."""

    OK = "ok"
    WARN = "warn"  # worth a look; it has no consequence
    BAD = "bad"  # the job will fail or crawl
    SKIPPED = "skipped"  # not checked; the words say why
    PENDING = "pending"  # still being checked, beside the program


class HealthAction(StrEnum):
    """Consequence of a sick host or link before the program starts."""

    WARN = "warn"  # it is reported
    REPLACE = "replace"  # the attempt ends, and the job is tried again


class Check(StrEnum):
    """Subject of a check: first a host by itself, then its links, with one finding for each peer."""

    DISK = "disk"
    MEMORY = "memory"
    CLOCK = "clock"
    GPU = "gpu"
    NAMES = "names"  # every host's name resolves to its address
    PORT = "port"  # the port where ranks meet is free
    INTERFACE = "interface"  # the interface that reaches all peers
    COLLECTIVE = "collective"  # a sum over all hosts
    LINK = "link"  # the whole link, if it is ok or was not measured
    ROUTE = "route"  # packets leave by the expected interface
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
    host: str  # the reporting host; for a link, the source of packets
    peer: str | None = None  # target of packets; None for a check of the host by itself
    words: str = ""  # the result, with the expected result if they differ
    cause: str = ""  # the most likely cause; empty if the result is ok
    rate_mbit_s: float | None = None  # of a link, from host to peer, if measured
    clock_offset_s: float | None = None  # of a clock: its lead over the service's clock, if measured
