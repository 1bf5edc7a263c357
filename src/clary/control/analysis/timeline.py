"""Timeline of a job: statuses, the first cause, its consequences. Pure.

Where: `clary describe --why` shows it; FailureReason has room for the cause alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from clary.contract.statuses import RuleStatus
from clary.control.jobs.failure_words import Weight
from clary.control.jobs.first_cause import Moment, answers, first_of, moments
from clary.control.jobs.training_job import TrainingJob

STATUS = "status"
CAUSE = "cause"
FAILURE = "failure"  # a failure that is neither the cause nor a consequence of it
CASCADE = "cascade"  # a process that failed as a consequence of the cause


@dataclass(frozen=True, kw_only=True)
class TimelineRow:
    """One event; a host's processes that failed because of the cause share one row."""

    at: datetime
    kind: str  # STATUS, CAUSE, FAILURE or CASCADE
    where: str  # `algo-2, rank 3`; empty for statuses
    what: str
    num_folded: int = 1


def timeline(job: TrainingJob) -> list[TimelineRow]:
    """Return the statuses of all attempts and the failures of the current attempt, oldest first."""
    rows = [
        TimelineRow(at=row.started_at, kind=STATUS, where="", what=f"{row.status.value}: {row.message}")
        for row in job.transitions
    ]
    rows += [
        TimelineRow(at=item.changed_at, kind=STATUS, where="", what=f"rule {item.name} found an issue: {item.details}")
        for item in job.rule_evaluations
        if item.status is RuleStatus.ISSUES_FOUND
    ]
    found = moments(job.hosts) if job.failure is not None else []
    first = first_of(found)
    followers = [moment for moment in found if first is not None and moment is not first and _follows(moment, first)]
    rows += [_row(moment, CAUSE if moment is first else FAILURE) for moment in found if moment not in followers]
    for host in job.hosts:
        members = [moment for moment in followers if moment.host == host]
        if len(members) == 1:
            rows.append(_row(members[0], CASCADE))
        elif members:
            what = f"{len(members)} processes failed because of it, the first with: {members[0].words}"
            row = TimelineRow(at=members[0].at, kind=CASCADE, where=host, what=what, num_folded=len(members))
            rows.append(row)
        num_ended = sum(item.is_consequence for item in job.hosts[host].facts.exits)
        if num_ended and first is not None:
            at = max(item.ended_at for item in job.hosts[host].facts.exits if item.is_consequence)
            what = f"{num_ended} of this host's processes {'was' if num_ended == 1 else 'were'} ended because of it"
            rows.append(TimelineRow(at=at, kind=CASCADE, where=host, what=what, num_folded=num_ended))
    return sorted(rows, key=lambda row: row.at)


def _follows(moment: Moment, first: Moment) -> bool:
    return moment.weight is not Weight.OWN or answers(moment, first)


def _row(moment: Moment, kind: str) -> TimelineRow:
    where = moment.host if moment.rank is None else f"{moment.host}, rank {moment.rank}"
    return TimelineRow(at=moment.at, kind=kind, where=where, what=moment.words)
