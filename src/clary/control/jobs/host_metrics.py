"""Metrics that the service keeps of each host by itself: how far its checkpoints are behind. Pure.

Where: the agent gateway stores them as reports come in, CloudWatch's operations read them with dimension `Host`, whose
value is JOB/HOST.
Source: "Monitor jobs and endpoints with Amazon CloudWatch" (developer guide) for the dimension; the names are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from clary.contract.agent_protocol import CheckpointFacts
from clary.control.jobs.training_job import FinalMetric

LAG_SECONDS = "checkpoint:lag_seconds"  # how long the oldest change has been waiting to be stored
LAG_BYTES = "checkpoint:lag_bytes"  # changed and not stored
UNITS: Mapping[str, str] = {LAG_SECONDS: "Seconds", LAG_BYTES: "Bytes"}
MOST = 2**63  # of seconds and bytes: an agent that says more has not measured it, and no number may hold it
INTERVAL_S = 10.0  # between stored values of one host; facts may change every second


def stored_name(metric: str, host: str) -> str:
    """Return the name under which a host's metric stands among those of its job."""
    return f"{metric} of {host}"


def is_due(facts: CheckpointFacts, last: CheckpointFacts | None, *, since_s: float) -> bool:
    """Whether values are to be stored now.

    Args:
        facts: what the host reports.
        last: what was stored last; None for nothing yet.
        since_s: seconds since then.
    """
    if last is None or since_s >= INTERVAL_S:
        return True
    # Without this a host that has caught up would seem to be behind until it falls behind again.
    return not (facts.lag_s or facts.dirty_bytes) and bool(last.lag_s or last.dirty_bytes)


def values_of(host: str, facts: CheckpointFacts, *, at: datetime) -> list[FinalMetric]:
    """Return the values of one report.

    Args:
        host: algo-N, which the stored names end with.
        facts: as the host reports them; numbers are bounded to 0 to `MOST`.
        at: time of the report.
    """
    values = {LAG_SECONDS: facts.lag_s, LAG_BYTES: facts.dirty_bytes}
    return [
        FinalMetric(name=stored_name(name, host), value=float(max(0, min(value, MOST))), at=at)
        for name, value in values.items()
    ]
