"""Words on what a job does, and on one that waits: its place in the queue, and when it may start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clary.cli.tables import duration

SOON_S = 1.0  # what comes sooner is now


def state_words(facts: Mapping[str, Any]) -> str:
    """Return a job's state, and what AWS calls it where that says more: `Running (Uploading)`."""
    return f"{facts['state']} ({facts['secondary_status']})"


def waiting_words(facts: Mapping[str, Any]) -> str:
    """Return the place of a job that waits, when it may start, and what it waits for; empty for any other."""
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
