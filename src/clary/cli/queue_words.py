"""Words on the state of a job, and for a waiting job on its place in the queue and its estimated start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clary.cli.tables import duration

SOON_S = 1.0  # what comes sooner is now


def state_words(facts: Mapping[str, Any]) -> str:
    """Return a job's state, with AWS's word where that says more: `Running (Uploading)`."""
    return f"{facts['state']} ({facts['secondary_status']})"


def waiting_words(facts: Mapping[str, Any]) -> str:
    """Return place, estimated start and reason of a waiting job, or an empty text for any other job."""
    if facts["state"] != "Queued":
        return ""
    place = queue_words(facts["queue"]) if facts["queue"] else ""
    return "; ".join(part for part in (place, str(facts["pending_reason"]).rstrip(".")) if part)


def queue_words(queue: Mapping[str, Any]) -> str:
    """Return `place 3 of 205, starts in about 12m 00s (...)`, or why that cannot be told."""
    if queue["place"] is None:
        return "passed over for now, start unknown"
    place = f"place {queue['place']} of {queue['num_waiting']}"
    if queue["start_in_s"] is None:
        return f"{place}, start unknown: {queue['estimate']}"
    if queue["start_in_s"] < SOON_S:
        return f"{place}, starts at once"
    if queue["basis"] == "past jobs":
        return f"{place}, starts in about {duration(queue['start_in_s'])} ({queue['estimate']})"
    return f"{place}, starts within {duration(queue['start_in_s'])} ({queue['estimate']})"
