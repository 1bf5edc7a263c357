r"""Actions that follow when a rule of a job has found an issue. Pure.

Where: `transitions` stops the job, `debug_request` warns of actions that Clary cannot perform,
`reconcile.rule_notices` sends notices.
Source: smdebug_rulesconfig 1.0.1 `actions`: `action_json` of RuleParameters is one object or a list of them, with every
quotation mark behind a backslash:

    [{\"training_job_prefix\": \"my-job\", \"name\": \"stoptraining\"}, {\"endpoint\": \"...\", ...}]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clary.contract.statuses import RuleStatus
from clary.control.jobs.rules.rule_evaluations import configurations_of
from clary.control.jobs.training_job import RuleEvaluation, RuleKind, TrainingJob

STOP_TRAINING = "stoptraining"
UNSENDABLE = ("email", "sms")  # actions that need Amazon SNS
STALLED_RULE = "StalledTrainingRule"  # this rule has its own parameter for `stoptraining`


@dataclass(frozen=True, kw_only=True)
class Action:
    """One action of a rule."""

    name: str  # stoptraining, email, sms
    job_prefix: str = ""  # for stoptraining: prefix of the names of jobs to stop


def actions_of(parameters: Mapping[str, str]) -> tuple[Action, ...]:
    """Return the actions in RuleParameters.

    Raises: ValueError naming the problem of `action_json`.
    """
    actions = _parse(parameters["action_json"]) if parameters.get("action_json") else []
    is_stalled = parameters.get("rule_to_invoke") == STALLED_RULE
    if is_stalled and parameters.get("stop_training_on_fire", "").strip().lower() in ("true", "1", "yes"):
        actions.append(Action(name=STOP_TRAINING, job_prefix=parameters.get("training_job_name_prefix", "")))
    return tuple(actions)


def _parse(text: str) -> list[Action]:
    try:
        document = json.loads(text)
    except ValueError:
        try:
            document = json.loads(text.replace('\\"', '"'))
        except ValueError as error:
            raise ValueError(f"action_json is not valid JSON: {error}") from error
    items = document if isinstance(document, list) else [document]
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise ValueError(f"an action has no name: {str(item)[:100]}; expected stoptraining, email or sms")
    return [Action(name=item["name"].lower(), job_prefix=str(item.get("training_job_prefix", ""))) for item in items]


def stops(parameters: Mapping[str, str], job_name: str) -> bool:
    """Whether a rule with these parameters stops its own job; it never stops other jobs."""
    try:
        actions = actions_of(parameters)
    except ValueError:
        return False
    return any(action.name == STOP_TRAINING and job_name.startswith(action.job_prefix) for action in actions)


def reason_to_stop(job: TrainingJob) -> str:
    """Return the reason why a rule wants the job stopped, or an empty text."""
    fired = _fired(job.rule_evaluations)
    for config in configurations_of(job, RuleKind.DEBUG):
        name = config["RuleConfigurationName"]
        if name in fired and stops(config.get("RuleParameters") or {}, job.name):
            return f"rule {name} found an issue and its action is to stop the training: {fired[name].details}"
    return ""


def _fired(evaluations: Sequence[RuleEvaluation]) -> dict[str, RuleEvaluation]:
    return {
        item.name: item
        for item in evaluations
        if item.kind is RuleKind.DEBUG and item.status is RuleStatus.ISSUES_FOUND
    }


def newly_found(before: TrainingJob, after: TrainingJob) -> tuple[RuleEvaluation, ...]:
    """Return the rules that have found an issue between two states of a job."""
    known = {(item.kind, item.name) for item in before.rule_evaluations if item.status is RuleStatus.ISSUES_FOUND}
    return tuple(
        item
        for item in after.rule_evaluations
        if item.status is RuleStatus.ISSUES_FOUND and (item.kind, item.name) not in known
    )


def notice_of(job: TrainingJob, item: RuleEvaluation) -> dict[str, Any]:
    """Return the notice of a finding as plain data for JSON, without the job's request."""
    return {
        "event": "RuleIssuesFound",
        "training_job_name": job.name,
        "training_job_arn": job.arn,
        "training_job_status": job.status.value,
        "rule_configuration_name": item.name,
        "rule_kind": item.kind.value,
        "rule_evaluation_status": item.status.value,
        "status_details": item.details,
        "at": item.changed_at.isoformat(),
    }
