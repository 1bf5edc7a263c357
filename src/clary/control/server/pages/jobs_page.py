"""The page of all jobs: searched, sorted, page by page.

Where: the answer to /clary/v1/jobs.

    ?search=word         in name, statuses, state, instance type, failure reason and reason to wait; ignores case
    &status=InProgress   of this status only
    &state=Queued        of this state only: Queued, Starting, Running, Stopping, or a finished job's status
    &sort=created        or name, status, duration
    &order=desc          or asc; by default newest first, names from A, and states in the order of a job's life
    &limit=100&after=... number of jobs, and the last page's `next`
    &skip=9000           skips this number of jobs, for far scrolling

Each job has its `state`, which `states` counts; `queue` of a queued job has its place, the reason of its wait, and an
estimate of its start. `duration_s` is from start to end, or until now; null for a job that has not started.
Times are ISO 8601 in UTC, as on a job's own page. NaN and infinite values are null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.contract.statuses import TrainingJobStatus
from clary.control.jobs.job_state import JobState
from clary.control.jobs.training_status import progress_facts
from clary.control.services.call import Services
from clary.control.services.training_progress import job_progress
from clary.control.store.errors import BadToken
from clary.control.store.job_cards import MAX_CARDS, CardOrder, CardQuery, JobCard

DEFAULT_LIMIT = 100
MAX_SEARCH_LENGTH = 200
MAX_PROGRESS = 20  # maximum number of running jobs with progress
MAX_REASONED = 20  # maximum number of queued jobs whose exact reason is shown
_NUMBER = re.compile(r"[0-9]{1,6}")


async def jobs_page(services: Services, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the page. Raises: WireError with the status to send."""
    wanted = _query_of(query)
    places = {name: number for number, name in enumerate(services.hub.waiting_jobs())}
    wanted = replace(wanted, also_found=_waiting_for(services, places, wanted.search))
    try:
        page = await services.store.cards.page(wanted, now=services.clock.now())
    except BadToken as error:
        raise WireError("ValidationException", error.message) from error
    queue = services.queue.places() if any(card.name in places for card in page.cards) else {}
    progress = await _progress(services, page.cards)
    rows = [
        {
            **_plain(
                card, pending_reason=_pending_reason(services, card.name, places), progress=progress.get(card.name)
            ),
            "duration_s": _duration_s(services, card),
            "queue": to_plain(queue.get(card.name)),
        }
        for card in page.cards
    ]
    total = sum(page.counts.values())
    if wanted.status is not None:
        total = page.counts.get(wanted.status.value, 0)
    if wanted.state is not None:
        total = page.states.get(wanted.state.value, 0)
    return {
        "jobs": rows,
        "next": page.next_token,
        "counts": {status.value: page.counts.get(status.value, 0) for status in TrainingJobStatus},
        "states": {state.value: page.states.get(state.value, 0) for state in JobState},
        "total": total,
    }


def _query_of(query: Mapping[str, str]) -> CardQuery:
    order = _choice(CardOrder, query, "sort", CardOrder.CREATED)
    default = "asc" if order in (CardOrder.NAME, CardOrder.STATUS) else "desc"
    direction = query.get("order") or default
    if direction not in ("asc", "desc"):
        raise WireError("ValidationException", f"order must be asc or desc, got {direction[:40]!r}")
    search = query.get("search", "").strip()
    if len(search) > MAX_SEARCH_LENGTH:
        raise WireError("ValidationException", f"search has at most {MAX_SEARCH_LENGTH} characters, got {len(search)}")
    skip = query.get("skip") or "0"
    if not _NUMBER.fullmatch(skip):
        raise WireError("ValidationException", f"skip must be 0 to 999999, got {skip[:40]!r}")
    limit = query.get("limit", str(DEFAULT_LIMIT))
    if not _NUMBER.fullmatch(limit) or not 1 <= int(limit) <= MAX_CARDS:
        raise WireError("ValidationException", f"limit must be 1 to {MAX_CARDS}, got {limit[:40]!r}")
    status, state = _choice(TrainingJobStatus, query, "status", None), _choice(JobState, query, "state", None)
    if status is not None and state is not None:
        raise WireError("ValidationException", "give status or state, not both")
    return CardQuery(
        search=search.replace("\0", ""),  # PostgreSQL cannot store NUL in a text
        status=status,
        state=state,
        order=order,
        descending=direction == "desc",
        limit=int(limit),
        token=query.get("after") or None,
        skip=int(skip),
    )


def _choice(choices: Any, query: Mapping[str, str], name: str, default: Any) -> Any:
    value = query.get(name)
    if not value:
        return default
    if value not in list(choices):
        known = ", ".join(choices)
        raise WireError("ValidationException", f"{name} must be one of {known}, got {value[:40]!r}")
    return choices(value)


async def _progress(services: Services, cards: Sequence[JobCard]) -> dict[str, Any]:
    """Return the progress of running jobs, by name; only of the first few, because each needs its own query."""
    live = (services.hub.live_job(card.name) for card in cards)
    running = [job for job in live if job is not None and job.hosts and not job.is_terminal][:MAX_PROGRESS]
    now = services.clock.now()
    return {
        job.name: progress_facts(await job_progress(services, job), now=now, is_over=job.is_terminal) for job in running
    }


def _duration_s(services: Services, card: JobCard) -> float | None:
    """Return the seconds that a job has run: by its own clock while it runs, afterwards by the times of its card."""
    live = services.hub.live_job(card.name)
    if live is None or card.started_at is None or card.ended_at is not None:
        return card.duration_s
    return max(0.0, (live.now(services.clock) - card.started_at).total_seconds())


def _waiting_for(services: Services, places: Mapping[str, int], search: str) -> tuple[str, ...]:
    """Return the queued jobs whose reason to wait contains the search; reasons change often and are not stored."""
    wanted = search.lower()
    return tuple(name for name in places if wanted in _pending_reason(services, name, places).lower()) if wanted else ()


def _pending_reason(services: Services, name: str, places: Mapping[str, int]) -> str:
    """Return why a job waits: exactly for the first jobs of the queue, else as the number of jobs ahead."""
    place = places.get(name)
    if place is None:
        return ""
    if place >= MAX_REASONED:  # the exact reason depends on all jobs ahead
        return f"First come, first served: {place} older jobs wait for hosts."
    job = services.hub.live_job(name)
    return "" if job is None else services.admission.pending_reason(job)


def _plain(card: JobCard, *, pending_reason: str, progress: Any) -> dict[str, Any]:
    return {
        "name": card.name,
        "status": card.status,
        "secondary_status": card.secondary_status,
        "state": card.state.value,
        "created_at": to_plain(card.created_at),
        "started_at": to_plain(card.started_at),
        "ended_at": to_plain(card.ended_at),
        "num_hosts": card.num_hosts,
        "instance_type": card.instance_type,
        "pending_reason": pending_reason,
        "failure_reason": card.failure_reason,
        "progress": progress,
        "metrics": [dict(metric) for metric in card.metrics],
        "tags": dict(card.tags),
    }
