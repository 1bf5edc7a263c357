"""State of each rule of a job: DebugRuleEvaluationStatuses, ProfilerRuleEvaluationStatuses. Pure.

Where: `transitions` keeps reports on rules in the job's record (`RuleEvaluationChanged`; agents' reports);
`services.job_descriptions`, the command line and the console show `rows_of`. Rules without a report have a row too,
because rows follow the request.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from clary.contract.agent_protocol import HostFacts
from clary.contract.job_rules import MAX_DETAILS_CHARACTERS
from clary.contract.statuses import RuleStatus
from clary.control.jobs.host_orders import is_uploading
from clary.control.jobs.training_job import EndCause, RuleEvaluation, RuleKind, TrainingJob

NOT_STARTED_DETAILS = "the job ended before the rule was started"
_REQUEST_MEMBERS = {RuleKind.DEBUG: "DebugRuleConfigurations", RuleKind.PROFILER: "ProfilerRuleConfigurations"}
_PART_OF_ARN = 24  # characters of each name, the job's and the rule's, in a processing job's name of at most 63
_LIVE = (RuleStatus.IN_PROGRESS, RuleStatus.STOPPING)
_OF_ATTEMPT = (RuleStatus.NO_ISSUES_FOUND, RuleStatus.STOPPED)  # final for one attempt; the next attempt evaluates anew

__all__ = [
    "RuleEvaluation",
    "RuleKind",
    "RuleStatus",
    "configurations_of",
    "evaluation_of",
    "evaluations_of",
    "rows_of",
    "with_evaluation",
    "with_facts",
]


def configurations_of(job: TrainingJob, kind: RuleKind) -> tuple[Mapping[str, Any], ...]:
    """Return the request's rules of a kind, in their order."""
    return tuple(job.request.get(_REQUEST_MEMBERS[kind]) or ())


def evaluation_of(job: TrainingJob, kind: RuleKind, name: str) -> RuleEvaluation | None:
    """Return the last known evaluation of a rule, or None before its first report.

    Args:
        job: record of the job.
        kind: kind of the rule, because a profiler rule and a debugger rule may have the same name.
        name: RuleConfigurationName.
    """
    return next((item for item in job.rule_evaluations if item.kind is kind and item.name == name), None)


def with_evaluation(job: TrainingJob, told: RuleEvaluation) -> tuple[RuleEvaluation, ...]:
    """Return the job's evaluations, with `told` in place of the known evaluation of the same rule.

    A rule that has found an issue keeps that status, in later attempts too: after IssuesFound only another finding
    changes the evaluation, and a repeat of the same report does not change its time.
    """
    known = evaluation_of(job, told.kind, told.name)
    if known is None:
        return (*job.rule_evaluations, told)
    if known.status is RuleStatus.ISSUES_FOUND and told.status is not RuleStatus.ISSUES_FOUND:
        return job.rule_evaluations
    if (known.status, known.details) == (told.status, told.details):
        return job.rule_evaluations
    return tuple(told if item is known else item for item in job.rule_evaluations)


def with_facts(job: TrainingJob, facts: HostFacts, now: datetime) -> tuple[RuleEvaluation, ...]:
    """Return the job's evaluations with a host's reports on the rules over tensors.

    Reports on rules that the request does not name are dropped.

    Args:
        job: record of the job.
        facts: facts of one host; details are cut at `MAX_DETAILS_CHARACTERS`.
        now: current time by the job's clock.
    """
    asked = {config["RuleConfigurationName"] for config in configurations_of(job, RuleKind.DEBUG)}
    for told in facts.rules:
        if told.name in asked:
            evaluation = RuleEvaluation(
                kind=RuleKind.DEBUG,
                name=told.name,
                status=told.status,
                details=told.details[:MAX_DETAILS_CHARACTERS],
                changed_at=now,
            )
            job = replace(job, rule_evaluations=with_evaluation(job, evaluation))
    return job.rule_evaluations


def evaluations_of(job: TrainingJob, kind: RuleKind) -> tuple[RuleEvaluation, ...]:
    """Return the state of each rule of the request, in the request's order.

    A rule without a report is in progress as long as the job is; a debugger rule that was in progress when the job
    ended, and about which no later report arrived, counts as stopped. A profiler rule is in progress until the service
    has evaluated it after the job's end. A debugger rule whose report covers only an ended attempt is in progress too.
    """
    return tuple(
        _as_it_stands(job, evaluation_of(job, kind, config["RuleConfigurationName"]), kind, config)
        for config in configurations_of(job, kind)
    )


def rows_of(job: TrainingJob, kind: RuleKind) -> list[dict[str, Any]]:
    """Return the rows of DebugRuleEvaluationStatuses or ProfilerRuleEvaluationStatuses, AWS spelling."""
    rows = []
    for item in evaluations_of(job, kind):
        row: dict[str, Any] = {
            "RuleConfigurationName": item.name,
            "RuleEvaluationJobArn": evaluation_arn(job, item),
            "RuleEvaluationStatus": item.status.value,
            "LastModifiedTime": item.changed_at,
        }
        if item.details:
            row["StatusDetails"] = item.details[:MAX_DETAILS_CHARACTERS]
        rows.append(row)
    return rows


def evaluation_arn(job: TrainingJob, item: RuleEvaluation) -> str:
    """Return the ARN of a rule's run, named like SageMaker's processing jobs."""
    digest = hashlib.sha256(f"{job.name}\n{item.kind.value}\n{item.name}".encode()).hexdigest()[:8]
    parts = (_part(job.name), _part(item.name), digest)
    return f"{job.arn.rpartition(':')[0]}:processing-job/{'-'.join(part for part in parts if part)}"


def _part(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "-", name)[:_PART_OF_ARN].strip("-").lower()


def _as_it_stands(
    job: TrainingJob, known: RuleEvaluation | None, kind: RuleKind, config: Mapping[str, Any]
) -> RuleEvaluation:
    if known is not None and kind is RuleKind.DEBUG and _goes_on(job, known):
        return replace(known, status=RuleStatus.IN_PROGRESS, details="")
    # The service evaluates profiler rules, after the job's last rows have arrived.
    was_cut_off = (
        known is not None and kind is RuleKind.DEBUG and known.status in _LIVE and _is_over(job, known.changed_at)
    )
    if known is not None and not was_cut_off:
        return known
    if not job.is_terminal or kind is RuleKind.PROFILER:
        return RuleEvaluation(
            kind=kind,
            name=config["RuleConfigurationName"],
            status=RuleStatus.IN_PROGRESS,
            changed_at=job.created_at,
        )
    details = NOT_STARTED_DETAILS if known is None else "the job ended before the rule had read everything"
    return RuleEvaluation(
        kind=kind,
        name=config["RuleConfigurationName"],
        status=RuleStatus.STOPPED,
        details=details,
        changed_at=job.modified_at,
    )


def _goes_on(job: TrainingJob, known: RuleEvaluation) -> bool:
    """Whether a rule's report at an attempt's end may not be final, because another attempt follows or runs."""
    if job.is_terminal or known.status not in _OF_ATTEMPT:
        return False
    if job.end_cause is EndCause.FAILURE:
        return not is_uploading(job)  # until uploads begin, the job may be retried
    is_of_past = bool(job.past_attempts) and known.changed_at <= job.past_attempts[-1].ended_at
    return job.end_cause is None and (job.ending is not None or is_of_past)


def _is_over(job: TrainingJob, changed_at: datetime) -> bool:
    """Whether no further report can arrive on a rule that was still in progress."""
    return job.is_terminal and job.modified_at >= changed_at
