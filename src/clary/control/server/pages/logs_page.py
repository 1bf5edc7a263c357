"""Page `logs` of a job: its lines, oldest first, page by page.

Where: `clary logs` reads it; the console reads `log_lines_page`, newest first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clary.base.errors import WireError
from clary.control.jobs.job_names import host_of_stream
from clary.control.jobs.training_job import TrainingJob
from clary.control.services.call import Services
from clary.control.store.errors import BadToken, StreamNotFound
from clary.control.store.log_files.log_pages import EventPage

LOG_PAGE = 2000  # maximum number of lines of one stream in one answer
# A page of the store also ends at 1 MiB, less one line of at most 256 KiB; a character has up to four bytes.
FULL_PAGE_CHARACTERS = 128 * 1024
_MOMENT = re.compile(r"[0-9]{1,15}")  # digits of milliseconds since 1970


async def logs_page(services: Services, job: TrainingJob, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the next lines of every wanted stream. Raises: WireError with the status to send.

    `sure_until_ms` is None if the answer contains all lines so far; else lines of this time and later may be missing.

    Args:
        services: store the logs.
        job: job of the log, which may have ended.
        query: `host`, `rank`, `attempt`, `since_ms`, `until_ms` and `after.STREAM`, a token of the previous page; each
            may be missing.
    """
    wanted_host, wanted_rank = query.get("host"), query.get("rank")
    start_ms, end_ms = _moment(query, "since_ms"), _moment(query, "until_ms")
    start_ms, end_ms = _within_attempt(job, query.get("attempt"), start_ms, end_ms)
    if wanted_host is not None and job.hosts and wanted_host not in job.hosts:
        message = f"{job.name} has no host {wanted_host!r}; it has {', '.join(job.hosts)}"
        raise WireError("NotFound", message, http_status=404)
    # Read before the lines: if the job has ended by then, this page misses no line.
    is_over = job.is_terminal
    lines: list[dict[str, Any]] = []
    tokens: dict[str, str] = {}
    sure_until_ms: int | None = None
    for stream in job.log_streams:
        host = host_of_stream(stream)
        if wanted_host not in (None, host):
            continue
        try:
            page = await services.logs.get_events(
                stream,
                start_ms=start_ms,
                end_ms=end_ms,
                from_head=True,
                token=query.get(f"after.{stream}"),
                limit=LOG_PAGE,
            )
        except StreamNotFound:  # the stream was deleted meanwhile
            continue
        except BadToken as error:
            raise WireError("ValidationException", error.message) from error
        tokens[stream] = page.next_forward_token
        if _is_full(page):
            end_ms = page.events[-1].timestamp_ms
            sure_until_ms = end_ms if sure_until_ms is None else min(sure_until_ms, end_ms)
        lines.extend(
            {"host": host, "at_ms": event.timestamp_ms, "text": event.message, "rank": event.rank}
            for event in page.events
            if wanted_rank is None or str(event.rank) == wanted_rank
        )
    lines.sort(key=lambda line: line["at_ms"])
    return {"lines": lines, "tokens": tokens, "is_over": is_over, "sure_until_ms": sure_until_ms}


def _moment(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not _MOMENT.fullmatch(text):
        raise WireError("ValidationException", f"{name} must be milliseconds since 1970, got {text[:40]!r}")
    return int(text)


def _within_attempt(
    job: TrainingJob, wanted: str | None, start_ms: int | None, end_ms: int | None
) -> tuple[int | None, int | None]:
    """Return the time span, narrowed to the wanted attempt; attempts never overlap."""
    if wanted is None:
        return start_ms, end_ms
    attempts = [str(number) for number in range(1, job.attempt + 1)]
    if wanted not in attempts:
        existing = f"it has {', '.join(attempts)}" if attempts else "no hosts were asked for yet"
        raise WireError("NotFound", f"{job.name} has no attempt {wanted[:20]}; {existing}", http_status=404)
    ends_ms = {attempt.number: int(attempt.ended_at.timestamp() * 1000) for attempt in job.past_attempts}
    starts = [moment for moment in (start_ms, ends_ms.get(int(wanted) - 1)) if moment is not None]
    ends = [moment for moment in (end_ms, ends_ms.get(int(wanted))) if moment is not None]
    return max(starts, default=None), min(ends, default=None)


def _is_full(page: EventPage) -> bool:
    """Whether more lines may follow the page."""
    return len(page.events) == LOG_PAGE or sum(len(event.message) for event in page.events) > FULL_PAGE_CHARACTERS
