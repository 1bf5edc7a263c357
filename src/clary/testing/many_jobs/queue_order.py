"""Check that jobs were admitted in the order of their creation, by facts that clients see. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from clary.testing.many_jobs.records import JobRecord


def overtakings(jobs: Sequence[JobRecord]) -> list[str]:
    """Return a sentence for each job that certainly got its hosts before an older job.

    Jobs that never got hosts do not count; jobs with equal CreationTime (in milliseconds) have no order.
    """
    admitted = [job for job in jobs if job.admitted_from is not None]
    ordered = sorted(admitted, key=lambda job: job.created_at)
    found: list[str] = []
    latest: JobRecord | None = None  # the older job that was admitted last
    for _, group in groupby(ordered, key=lambda job: job.created_at):
        twins = list(group)
        if latest is not None:
            found += [_sentence(job, latest) for job in twins if _until(job) < _from(latest)]
        latest = max([*twins, *([latest] if latest is not None else [])], key=_from)
    return found


def longest_pause_s(jobs: Sequence[JobRecord]) -> float:
    """Return the longest time in which no job was admitted although a job waited that was admitted later."""
    admitted = sorted((job for job in jobs if job.admitted_from is not None), key=_until)
    longest = 0.0
    waits_since = float("inf")  # creation time of the oldest job that was admitted at `after` or later
    for before, after in reversed(list(pairwise(admitted))):
        waits_since = min(waits_since, after.created_at)
        longest = max(longest, _until(after) - max(_until(before), waits_since))
    return longest


def _sentence(job: JobRecord, older: JobRecord) -> str:
    return (
        f"{job.name}, created {job.created_at - older.created_at:.3f} s after {older.name}, "
        f"had its hosts {_from(older) - _until(job):.3f} s before it"
    )


def _from(job: JobRecord) -> float:
    assert job.admitted_from is not None
    return job.admitted_from


def _until(job: JobRecord) -> float:
    assert job.admitted_until is not None
    return job.admitted_until
