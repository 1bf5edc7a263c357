"""Rules that run beside a job's program, and folders that are mirrored while it runs: the plan and the facts of both.

Where: the service puts `RulePlan` and `MirrorPlan` into the launch plan; the agent of the first host runs the rules and
reports `RuleFacts`; `control.jobs.rules.rule_evaluations` makes statuses of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clary.contract.statuses import RuleStatus

MAX_DETAILS_CHARACTERS = 1024  # of StatusDetails


@dataclass(frozen=True, kw_only=True)
class RulePlan:
    """One rule over the tensors that a job saves."""

    name: str  # RuleConfigurationName
    rule: str  # class: a built-in one, or one of `source_uri`
    source_uri: str = ""  # s3:// of a Python file that has the class; empty for built-in rules
    other_trials: tuple[str, ...] = ()  # s3:// prefixes of other trainings' tensors
    parameters: Mapping[str, str] = field(default_factory=dict)  # of the rule itself


@dataclass(frozen=True, kw_only=True)
class MirrorPlan:
    """A folder whose files are copied to the object store while the program runs, and at its end."""

    what: str  # for people: tensors
    local_path: str  # as the program sees it
    s3_uri: str  # prefix that the files' names are put behind
    marks_end: bool = False  # whether the end of the program is marked in it, as trials expect


@dataclass(frozen=True, kw_only=True)
class RuleFacts:
    """How a rule stands, as the host sees it that runs it."""

    name: str
    status: RuleStatus
    details: str = ""  # at most MAX_DETAILS_CHARACTERS


def host_end(host: str, *, attempt: int, num_hosts: int) -> str:
    """Return the file, below a mirrored folder, by which a host of several says that its program has ended.

    What reads a training's tensors reads the names alone: as many as the last of them says, of one try, are the end.

    Args:
        host: its name.
        attempt: of the job.
        num_hosts: of the job; as many such files are the end of training.
    """
    return f"ended/{host}.try-{attempt}.of-{num_hosts}"
