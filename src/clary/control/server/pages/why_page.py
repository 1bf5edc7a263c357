"""Explanation of a job's failure for users: cause, host and rank, category, advice, and the process's last lines.

Where: the answer to jobs/NAME/why; `clary describe --why` prints it.

    {"cause", "category", "hint", "traceback": [lines], "last_lines": [lines], "lines_of": "algo-1, rank 0"}

`cause` is null for a job that has not failed; then the other members are empty.
"""

from __future__ import annotations

from typing import Any

from clary.base.plain import to_plain
from clary.control.analysis.failure_hints import category, hint
from clary.control.analysis.tracebacks import last_traceback
from clary.control.jobs.job_names import host_of_stream
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import JobFailure, TrainingJob
from clary.control.server.pages.log_lines_page import log_lines_page
from clary.control.services.call import Services

MOST_READ = 400  # in lines; a traceback of a deep framework has a few hundred
MOST_SHOWN = 12


async def why_page(services: Services, job: TrainingJob) -> dict[str, Any]:
    """Return the page."""
    failure = job.failure
    if failure is None:
        return {"cause": None, "category": "", "hint": "", "traceback": [], "last_lines": [], "lines_of": ""}
    lines, lines_of = await _last_lines(services, job, failure)
    channels = [channel.name for channel in JobRequest(job.request).channels]
    traceback = last_traceback(lines)
    # The failure's own text comes first: earlier lines may be about errors that the program has handled.
    told = "\n".join([failure.message, *traceback])
    return {
        "cause": to_plain(failure),
        "category": category(failure.verdict),
        "hint": hint(told, channels=channels) or hint("\n".join(lines[-MOST_SHOWN:]), channels=channels),
        "traceback": traceback,
        "last_lines": lines[-MOST_SHOWN:],
        "lines_of": lines_of,
    }


async def _last_lines(services: Services, job: TrainingJob, failure: JobFailure) -> tuple[list[str], str]:
    """Return the last lines of the failed process, oldest first, and the name of its host with its rank.

    If the process printed nothing, or its rank is unknown, return the last lines of the host, and only the host's name.
    """
    hosts = [host_of_stream(stream) for stream in job.log_streams]
    if not hosts:
        return [], ""
    host = failure.host if failure.host in hosts else hosts[0]
    query = {"host": host, "limit": str(MOST_READ)}
    if failure.rank is not None:
        page = await log_lines_page(services, job, {**query, "rank": str(failure.rank)})
        if page["lines"]:
            return _texts(page), f"{host}, rank {failure.rank}"
    return _texts(await log_lines_page(services, job, query)), host


def _texts(page: dict[str, Any]) -> list[str]:
    return [line["text"] for line in reversed(page["lines"])]
