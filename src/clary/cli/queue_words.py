"""Texts on the state of a job, and for a waiting job on its place in the queue and its estimated start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clary.cli.tables import duration

SOON_S = 1.0  # a shorter wait is shown as "starts at once"
MOST_REASON = 60  # characters of a reason in a row of a table
_IN_ORDER = "First come, first served"  # reasons with this beginning add nothing to the place in the queue
_BY_SCHEDULER = "scheduler"  # basis of the estimate where a scheduler such as Slurm orders the jobs
_NAMES = re.compile(r" \([^()]*\)")  # names of other jobs in a reason


def state_words(facts: Mapping[str, Any]) -> str:
    """Return a job's state with AWS's secondary status: `Running (Uploading)`."""
    return f"{facts['state']} ({facts['secondary_status']})"


def waiting_brief(facts: Mapping[str, Any]) -> str:
    """Return `place 3 of 205, within 12m 00s`, for a row of a table.

    The reason of the wait follows if the place in the queue is not the reason; names of other jobs are left out.
    """
    if facts["state"] != "Queued":
        return ""
    queue, reason = facts["queue"], str(facts["pending_reason"]).rstrip(".")
    if queue and queue["place"] is not None and reason.startswith(_IN_ORDER):
        reason = ""
    return "; ".join(part for part in (_place_brief(queue), _short_reason(reason)) if part)


def _place_brief(queue: Mapping[str, Any] | None) -> str:
    if not queue:
        return ""
    if queue["place"] is None:
        return "" if queue["basis"] == _BY_SCHEDULER else "passed over for now"
    place = f"place {queue['place']} of {queue['num_waiting']}"
    if queue["start_in_s"] is None:
        return f"{place}, start unknown"
    if queue["start_in_s"] < SOON_S:
        return f"{place}, starts at once"
    about = "in about" if queue["basis"] == "past jobs" else "within"
    return f"{place}, {about} {duration(queue['start_in_s'])}"


def awaited(reason: str) -> str:
    """Return a reason of a wait for a place that is called `waits for`: boxes' reasons begin with these words."""
    return reason.removeprefix("waits for ")


def _short_reason(reason: str) -> str:
    text = " ".join(_NAMES.sub("", awaited(reason)).split())
    head = text.partition(": ")[0]
    if len(text) > MOST_REASON and " " in head:  # one word, such as an engine's name, would be no reason
        text = head
    return text if len(text) <= MOST_REASON else f"{text[: MOST_REASON - 3]}..."


def queue_words(queue: Mapping[str, Any]) -> str:
    """Return `place 3 of 205, starts in about 12m 00s (...)`, or why the start is unknown."""
    if queue["place"] is None:
        who = "waits for the scheduler" if queue["basis"] == _BY_SCHEDULER else "passed over for now"
        return f"{who}, start unknown: {queue['estimate']}"
    place = f"place {queue['place']} of {queue['num_waiting']}"
    if queue["start_in_s"] is None:
        return f"{place}, start unknown: {queue['estimate']}"
    if queue["start_in_s"] < SOON_S:
        return f"{place}, starts at once"
    if queue["basis"] == "past jobs":
        return f"{place}, starts in about {duration(queue['start_in_s'])} ({queue['estimate']})"
    return f"{place}, starts within {duration(queue['start_in_s'])} ({queue['estimate']})"
