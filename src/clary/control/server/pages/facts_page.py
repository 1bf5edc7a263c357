"""The page of a job with all its facts, and the page of its launch plan.

Where: `clary describe`, `clary pools` and the console request the first, `clary plan` the second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.contract.launch_plan import without_secrets
from clary.control.analysis.billing import bill
from clary.control.analysis.failure_hints import category, hint
from clary.control.analysis.ledger import ledger
from clary.control.analysis.time_parts import cut_time
from clary.control.analysis.timeline import timeline
from clary.control.jobs.health import clock_words
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.job_state import job_state_row, job_times
from clary.control.jobs.rules.rule_evaluations import RuleKind, evaluations_of
from clary.control.jobs.training_job import PastAttempt, TrainingJob
from clary.control.jobs.training_status import progress_facts
from clary.control.server.pages.checkpoints_page import checkpoint_facts
from clary.control.server.pages.rehearsals_page import RehearsalPages
from clary.control.server.pages.stragglers_page import StragglerPages
from clary.control.server.pages.tuning_page import tuning_name
from clary.control.services.call import Services
from clary.control.services.job_descriptions import readable, unreadable_members
from clary.control.services.training_progress import job_progress

Shared = Callable[[bool], Sequence[str]]


async def facts_page(
    services: Services, job: TrainingJob, *, stragglers: StragglerPages, rehearsals: RehearsalPages, shared: Shared
) -> dict[str, Any]:
    """Return all facts of a job.

    Args:
        services: prices, queue, progress and clock.
        job: record of the job.
        stragglers: adds the verdict on stragglers.
        rehearsals: adds the job's rehearsals.
        shared: returns sentences on the parts that hosts share because of the settings; its argument tells whether the
            job has a network.
    """
    facts = await stragglers.facts(job, _facts(services, job, shared))
    # For 500 hosts this takes most of a second, and the console polls every two seconds.
    times = await asyncio.to_thread(_times, services, job)
    return {**facts, **times, **rehearsals.facts(job), "progress": await _progress(services, job)}


def _facts(services: Services, job: TrainingJob, shared: Shared) -> dict[str, Any]:
    plan = job.plan or {"hosts": [], "environment": {}}
    planned = {host["name"]: host for host in plan["hosts"]}
    hosts = [
        {
            "name": name,
            "phase": record.facts.phase.value,
            "instance_type": planned[name]["instance_type"],
            "processes_per_host": planned[name]["processes_per_host"],
            "address": planned[name]["address"],
            "timings_s": dict(record.facts.timings_s),
            "exits": _exits(record.facts.exits),
            "notes": list(record.facts.notes),
            "standstill": record.facts.standstill,
            "rendezvous_at": to_plain(record.facts.rendezvous_at),
        }
        for name, record in job.hosts.items()
    ]
    environment = plan["environment"]
    return {
        **job_state_row(job),
        "arn": job.arn,
        "tuning_job": tuning_name(job),
        "times": to_plain(job_times(job, now=job.now(services.clock))),
        "queue": to_plain(services.queue.place(job)),
        "created_at": to_plain(job.created_at),
        "attempt": job.attempt,
        "past_attempts": [_past_attempt(attempt) for attempt in job.past_attempts],
        "cause": to_plain(job.failure),
        "category": "" if job.failure is None else category(job.failure.verdict),
        "hint": _hint(job),
        "timeline": [to_plain(row) for row in timeline(job)],
        "pending_reason": services.admission.pending_reason(job),
        "image": JobRequest(job.request).image,
        "environment": f"{environment['name']} ({environment['python']})" if environment else "",
        "isolation": plan.get("isolation", ""),
        "model_artifacts_uri": job.model_artifacts_uri,
        "metrics": [to_plain(metric) for metric in job.final_metrics],
        "transitions": [to_plain(row) for row in job.transitions],
        "hosts": hosts,
        "clocks": clock_words(job),
        "warm_pool": _warm_pool(services, job),
        "checkpoints": checkpoint_facts(job),
        "rules": [to_plain(item) for kind in RuleKind for item in evaluations_of(readable(job), kind)],
        "warnings": [*job.warnings, *_unreadable(job), *_notes(hosts)],
        "emulation": list(job.emulation),
        "not_isolated": _not_isolated(job, shared),
    }


def _not_isolated(job: TrainingJob, shared: Shared) -> list[str]:
    """Return sentences on parts that a job's hosts reported as shared, then on parts that the settings share."""
    of_hosts = sorted({text for record in job.hosts.values() for text in record.facts.not_isolated})
    return [*of_hosts, *shared(not JobRequest(job.request).has_network_isolation)]


async def _progress(services: Services, job: TrainingJob) -> dict[str, Any] | None:
    progress = await job_progress(services, job)
    return progress_facts(progress, now=services.clock.now(), is_over=job.is_terminal)


def _times(services: Services, job: TrainingJob) -> dict[str, Any]:
    now = job.now(services.clock)
    price = services.prices.of_job(JobRequest(readable(job).request))
    spent = {**to_plain(ledger(job, now=now)), "bill": to_plain(bill(job, price, now=now))}
    return {"ledger": spent, "lanes": _lanes(job, now=now)}


def _warm_pool(services: Services, job: TrainingJob) -> dict[str, Any] | None:
    if job.warm_pool is None:
        return None
    keep_alive_s, retained_s = (
        JobRequest(job.request).keep_alive_s,
        job.warm_pool.retained_s(job.now(services.clock)),
    )
    return {**to_plain(job.warm_pool), "name": job.pool, "keep_alive_s": keep_alive_s, "retained_s": retained_s}


def plan_page(services: Services, job: TrainingJob) -> dict[str, Any]:
    """Return the launch plan without secrets. Raises: WireError 404 before there is a plan."""
    if job.plan is None:
        reason = services.admission.pending_reason(job) or "no hosts were asked for"
        raise WireError("NotFound", f"{job.name} has no launch plan yet: {reason}", http_status=404)
    return without_secrets(job.plan)


def _lanes(job: TrainingJob, *, now: datetime) -> dict[str, list[dict[str, Any]]]:
    """Return each host's activities over time: the periods whose total durations the page's `ledger` shows."""
    return {name: [to_plain(stretch) for stretch in stretches] for name, stretches in cut_time(job, now=now).items()}


def _past_attempt(attempt: PastAttempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "kind": attempt.kind.value,
        "reason": attempt.reason,
        "asked_at": to_plain(attempt.asked_at),
        "ended_at": to_plain(attempt.ended_at),
        "exits": {name: _exits(facts.exits) for name, facts in attempt.hosts.items()},
    }


def _hint(job: TrainingJob) -> str:
    """Return advice on a failure, derived from its text; the page `why` reads the log too."""
    if job.failure is None:
        return ""
    return hint(job.failure.message, channels=[channel.name for channel in JobRequest(job.request).channels])


def _exits(exits: Any) -> str:
    return ", ".join(
        f"{'rank ' + str(item.rank) + ': ' if item.rank is not None else ''}"
        f"{item.exit_code if item.exit_code is not None else f'signal {item.signal}'}"
        for item in exits
    )


def _unreadable(job: TrainingJob) -> list[str]:
    return [
        f"{path} of its stored request cannot be said in the API's words: another release wrote it, or it is damaged"
        for path in unreadable_members(job)
    ]


def _notes(hosts: list[dict[str, Any]]) -> list[str]:
    return [f"{host['name']}: {note}" for host in hosts for note in host["notes"]]
