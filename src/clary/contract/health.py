"""Findings of health checks and their consequences: agents report findings, the service weighs them.

Where: `HostFacts.health` carries the findings of one host; `control.jobs.health` decides which host or link is sick.
"""

from __future__ import annotations

from dataclasses import dataclass

from clary.base.string_enum import StrEnum

# Largest accepted difference of clocks; the times of log lines and checkpoints are compared across hosts.
WARN_CLOCK_S = 2.0


def seconds_in_words(seconds: float) -> str:
    """Return a clock difference as text: with three decimals if it is small, else in whole seconds."""
    return f"{seconds:.3f} s" if seconds < WARN_CLOCK_S else f"{seconds:.0f} s"


class FindingState(StrEnum):
    """Result of one check of a host or link."""

    OK = "ok"
    WARN = "warn"  # should be checked by a person; it has no consequence
    BAD = "bad"  # the job will fail or run very slowly
    SKIPPED = "skipped"  # not checked; `words` holds the reason
    PENDING = "pending"  # still being checked, while the program runs


class HealthAction(StrEnum):
    """Consequence of a sick host or link before the program starts."""

    WARN = "warn"  # report it
    REPLACE = "replace"  # end the attempt and start another attempt


class Check(StrEnum):
    """Subject of a check: DISK to COLLECTIVE concern one host by itself, the others the link to one peer."""

    DISK = "disk"
    MEMORY = "memory"
    CLOCK = "clock"
    GPU = "gpu"
    NAMES = "names"  # every host's name resolves to its address
    PORT = "port"  # the port at which ranks meet is free
    INTERFACE = "interface"  # an interface reaches all peers
    COLLECTIVE = "collective"  # a sum over all hosts is correct
    LINK = "link"  # the link as a whole, if it is ok or was not measured
    ROUTE = "route"  # packets leave by the expected interface
    REACH = "reach"
    DROP = "drop"  # packets of one port are dropped while packets of other ports pass
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
    rate_mbit_s: float | None = None  # rate of a link from host to peer, if measured
    clock_offset_s: float | None = None  # seconds that the host's clock is ahead of the service's, if measured
