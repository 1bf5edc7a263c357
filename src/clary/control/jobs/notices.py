"""From a notice that capacity ends to the end of the attempt on it. Pure.

Where: `transitions` asks when an agent reports that it was signalled; an engine's side asks when the engine says so
before any agent does. Whoever is first ends the attempt, the other changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta

from clary.contract.agent_protocol import CapacityNotice, notice_margin_s
from clary.control.jobs import events

_MAX_WHY_CHARACTERS = 200
_MAX_AGE_S = 24 * 3600.0


def reclaimed(host: str, why: str, grace_left_s: float | None, stop_grace_s: float) -> events.Reclaimed:
    """Return the event that ends an attempt because the capacity of one host is taken back.

    Args:
        host: whose capacity it is.
        why: in words, such as "Slurm job 4711 was preempted".
        grace_left_s: from now to the end of the capacity; None if unknown.
        stop_grace_s: that programs get at most.
    """
    words = "".join(character if character.isprintable() else " " for character in why)[:_MAX_WHY_CHARACTERS]
    reason = f"{host}: its capacity is taken back ({words})"
    if grace_left_s is None or not math.isfinite(grace_left_s):
        return events.Reclaimed(reason=reason, grace_s=stop_grace_s)
    left_s = max(0.0, grace_left_s)
    grace_s = max(0.0, min(stop_grace_s, left_s - notice_margin_s(left_s)))
    return events.Reclaimed(reason=f"{reason}; {left_s:.0f} s are left", grace_s=grace_s)


def of_report(
    host: str, notice: CapacityNotice, *, age_s: float, stop_grace_s: float, now: datetime
) -> events.Reclaimed:
    """Return the event for a notice that an agent reports.

    The clock of the host does not count: a node whose clock is behind would have no time left.

    Args:
        host: that reports.
        notice: what it was told.
        age_s: from the notice to the report.
        stop_grace_s: that programs get at most.
        now: by the job's clock.
    """
    age_s = min(max(0.0, age_s), _MAX_AGE_S)  # in this order, NaN becomes 0
    left_s = None if notice.grace_s is None else notice.grace_s - age_s
    return replace(reclaimed(host, notice.why, left_s, stop_grace_s), noticed_at=now - timedelta(seconds=age_s))
