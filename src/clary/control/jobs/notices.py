"""Turns a notice that capacity will end into the event that ends the attempt on that capacity. Pure.

Where: `transitions` calls `of_report` when an agent reports a signal; the reconciler calls `reclaimed` when the engine
reports first. The first notice ends the attempt; later notices change nothing, but the engine's reason takes the place
of a signal that an agent has reported.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta

from clary.contract.agent_protocol import CapacityNotice, notice_margin_s
from clary.control.jobs import events

_MAX_WHY_CHARACTERS = 200
_MAX_AGE_S = 24 * 3600.0


def reason_of(host: str, why: str) -> str:
    """Return the sentence that one host's capacity is taken back: one printable line."""
    words = "".join(character if character.isprintable() else " " for character in why)[:_MAX_WHY_CHARACTERS]
    return f"{host}: its capacity is taken back ({words})"


def reclaimed(host: str, why: str, grace_left_s: float | None, stop_grace_s: float) -> events.Reclaimed:
    """Return the event that ends an attempt because the capacity of one host is reclaimed.

    Args:
        host: the host that loses its capacity.
        why: reason, such as "Slurm job 4711 was preempted".
        grace_left_s: seconds from now to the end of the capacity; None if unknown.
        stop_grace_s: longest grace of programs.
    """
    reason = reason_of(host, why)
    if grace_left_s is None or not math.isfinite(grace_left_s):
        return events.Reclaimed(reason=reason, grace_s=stop_grace_s)
    left_s = max(0.0, grace_left_s)
    grace_s = max(0.0, min(stop_grace_s, left_s - notice_margin_s(left_s)))
    return events.Reclaimed(reason=f"{reason}; {left_s:.0f} s are left", grace_s=grace_s)


def of_report(
    host: str, notice: CapacityNotice, *, age_s: float, stop_grace_s: float, now: datetime
) -> events.Reclaimed:
    """Return the event for a notice that an agent reports.

    The host's clock is not used: with a clock that is behind, no time would seem to be left.

    Args:
        host: the host whose agent reports.
        notice: the notice that the host received.
        age_s: seconds from the notice to the report.
        stop_grace_s: longest grace of programs.
        now: current time by the job's clock.
    """
    age_s = min(max(0.0, age_s), _MAX_AGE_S)  # in this order of arguments, NaN becomes 0
    left_s = None if notice.grace_s is None else notice.grace_s - age_s
    return replace(reclaimed(host, notice.why, left_s, stop_grace_s), noticed_at=now - timedelta(seconds=age_s))
