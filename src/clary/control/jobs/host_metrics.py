"""Metrics that the service itself records for each host: the lag of its checkpoints. Pure.

Where: the agent gateway stores them as it receives reports, CloudWatch's operations read them with dimension `Host`,
whose value is JOB/HOST.
Source: "Monitor jobs and endpoints with Amazon CloudWatch" (developer guide) for the dimension; the names are Clary's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from clary.contract.agent_protocol import CheckpointFacts
from clary.control.jobs.training_job import FinalMetric

LAG_SECONDS = "checkpoint:lag_seconds"  # seconds for which the oldest change has waited to be stored
LAG_BYTES = "checkpoint:lag_bytes"  # bytes that have changed and are not stored
UNITS: Mapping[str, str] = {LAG_SECONDS: "Seconds", LAG_BYTES: "Bytes"}
MOST = 2**63  # maximum of both metrics: a larger value is no measurement, and might overflow
INTERVAL_S = 10.0  # between the stored values of one host; facts may change every second


def stored_name(metric: str, host: str) -> str:
    """Return the name of a host's metric among the metrics of its job."""
    return f"{metric} of {host}"


def is_due(facts: CheckpointFacts, last: CheckpointFacts | None, *, since_s: float) -> bool:
    """Whether values should be stored now.

    Args:
        facts: reported by the host.
        last: facts that were stored last; None before the first.
        since_s: seconds since `last`.
    """
    if last is None or since_s >= INTERVAL_S:
        return True
    # Without this last value, a host that has caught up would appear to keep its old lag until it lags again.
    return not (facts.lag_s or facts.dirty_bytes) and bool(last.lag_s or last.dirty_bytes)


def values_of(host: str, facts: CheckpointFacts, *, at: datetime) -> list[FinalMetric]:
    """Return the values of one report.

    Args:
        host: algo-N, the end of the stored names.
        facts: as the host reports them; numbers are bounded to 0 to `MOST`.
        at: time of the report.
    """
    values = {LAG_SECONDS: facts.lag_s, LAG_BYTES: facts.dirty_bytes}
    return [
        FinalMetric(name=stored_name(name, host), value=float(max(0, min(value, MOST))), at=at)
        for name, value in values.items()
    ]
