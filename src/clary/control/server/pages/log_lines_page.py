"""Lines of a job's log, newest first, from any position in both directions; can search through a million lines.

Where: the answer to jobs/NAME/log-lines.

    ?host=algo-1&rank=3        only of this host and rank
    &search=text               lines that contain the text; ignores case
    &before=CURSOR             lines older than the cursor: `next` of a page, or a line's own cursor
    &after=CURSOR              newer lines; repeated with each page's `previous`, this follows a running job
    &limit=200

    {"lines": [{"at_ms", "host", "rank", "text", "cursor"}], newest first in any case
     "next": cursor for `before`; null without older lines
     "previous": cursor for `after`
     "searched_until": milliseconds at which the search stopped to answer in time, or because the page was
          large; the cursor continues it; else null
     "is_over", "hosts"
     "num_lines": number of unexpired lines of the requested hosts, whatever the search and the rank}

A cursor is the time, host and number of a line: it stays valid, and works with every filter. `previous` of a request
without `before` also contains the number of seen lines of each host, so that a client that follows a job misses no line
that a host sends late.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from clary.base.errors import StoreError, WireError
from clary.control.jobs.job_names import host_of_stream
from clary.control.jobs.training_job import TrainingJob
from clary.control.services.call import Services
from clary.control.store.log_files.log_search import MAX_LINES, FoundLines, LinePlace, LineQuery

DEFAULT_LIMIT = 200
MAX_SEARCH_LENGTH = 500
_CURSOR = re.compile(
    r"([0-9]{1,15})\.([a-z0-9-]{1,40})\.(-1|[0-9]{1,15})(?:~((?:[0-9]{1,15}|-)(?:\.(?:[0-9]{1,15}|-))*))?"
)
_UNSEEN = "-"  # marks a host that was not requested
_NUMBER = re.compile(r"[0-9]{1,9}")


async def log_lines_page(services: Services, job: TrainingJob, query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of log lines, and cursors of the adjacent pages. Raises: WireError with the status to send.

    Args:
        services: store the logs.
        job: job of the log, which may have ended.
        query: parameters, as in the module docstring.
    """
    hosts = [host_of_stream(stream) for stream in job.log_streams]
    wanted = _query_of(query, hosts)
    wanted_host = query.get("host") or None
    if wanted_host is not None and hosts and wanted_host not in hosts:
        message = f"{job.name} has no host {wanted_host[:80]!r}; it has {', '.join(hosts)}"
        raise WireError("NotFound", message, http_status=404)
    streams = [
        stream if wanted_host in (None, host) else None for stream, host in zip(job.log_streams, hosts, strict=True)
    ]
    # Read before the lines: if the job has ended by then, this page misses no line.
    is_over = job.is_terminal
    try:
        found, end = await services.logs.find_lines(streams, wanted)
    except StoreError as error:
        raise WireError("InternalFailure", error.message, http_status=500) from error
    lines = [
        {"at_ms": line.place.at_ms, "host": hosts[line.place.stream], "rank": line.rank, "text": line.text}
        | {"cursor": _cursor(line.place, hosts)}
        for line in (found.lines if wanted.is_backward else reversed(found.lines))
    ]
    older, newer = _neighbours(found, wanted, end)
    previous = _cursor(newer, hosts) if hosts else None
    if hosts and (wanted.start is None or not wanted.is_backward):
        # A requested stream that does not exist yet has 0 seen lines.
        counts = [0 if seen is None and stream else seen for seen, stream in zip(found.seen, streams, strict=True)]
        previous = f"{previous}~{'.'.join(_UNSEEN if seen is None else str(seen) for seen in counts)}"
    was_cut = not found.is_complete and len(lines) < wanted.limit
    return {
        "lines": lines,
        "next": None if older is None else _cursor(older, hosts),
        "previous": previous,
        "searched_until": found.searched_to.at_ms if was_cut and found.searched_to is not None else None,
        "is_over": is_over,
        "hosts": hosts,
        "num_lines": found.num_lines,
    }


def _neighbours(found: FoundLines, query: LineQuery, end: LinePlace) -> tuple[LinePlace | None, LinePlace]:
    """Return the position from which older lines follow, None without older lines, and the position of newer lines."""
    start = query.start
    if query.is_backward:
        older = None if found.is_complete else found.searched_to
        # A page never contains the line at its start position; the shift by one keeps that line.
        return older, end if start is None else start._replace(sequence=start.sequence - 1)
    if start is None:
        return None, found.searched_to or LinePlace(0, 0, -1)
    return start._replace(sequence=start.sequence + 1), found.searched_to or start


def _query_of(query: Mapping[str, str], hosts: Sequence[str]) -> LineQuery:
    before, after = query.get("before") or None, query.get("after") or None
    if before is not None and after is not None:
        raise WireError("ValidationException", "give before or after, not both")
    search = query.get("search", "")
    if len(search) > MAX_SEARCH_LENGTH:
        raise WireError("ValidationException", f"search has at most {MAX_SEARCH_LENGTH} characters, got {len(search)}")
    limit, rank = query.get("limit") or str(DEFAULT_LIMIT), query.get("rank") or None
    if not _NUMBER.fullmatch(limit) or not 1 <= int(limit) <= MAX_LINES:
        raise WireError("ValidationException", f"limit must be 1 to {MAX_LINES}, got {limit[:40]!r}")
    if rank is not None and not _NUMBER.fullmatch(rank):
        raise WireError("ValidationException", f"rank must be a whole number, got {rank[:40]!r}")
    place = before or after
    return LineQuery(
        needle=search,
        rank=None if rank is None else int(rank),
        start=None if place is None else _place_of(place, hosts),
        seen=() if after is None else _seen_of(after, hosts),
        is_backward=after is None,
        limit=int(limit),
    )


def _cursor(place: LinePlace, hosts: Sequence[str]) -> str:
    return f"{place.at_ms}.{hosts[place.stream]}.{place.sequence}"


def _place_of(cursor: str, hosts: Sequence[str]) -> LinePlace:
    found = _CURSOR.fullmatch(cursor)
    if found is None or found[2] not in hosts:
        raise WireError(
            "ValidationException",
            f"{cursor[:60]!r} is not a cursor of this job's log: repeat the request without a cursor",
        )
    return LinePlace(int(found[1]), hosts.index(found[2]), int(found[3]))


def _seen_of(cursor: str, hosts: Sequence[str]) -> tuple[int | None, ...]:
    found = _CURSOR.fullmatch(cursor)
    if found is None or found[4] is None:
        return ()
    counts = [None if count == _UNSEEN else int(count) for count in found[4].split(".")][: len(hosts)]
    return (*counts, *[0] * (len(hosts) - len(counts)))  # hosts that are new since the cursor
