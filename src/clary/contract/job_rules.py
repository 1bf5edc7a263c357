"""Rules that run beside a job's program, and folders that are mirrored while it runs: the plan and the facts of both.

Where: the service puts `RulePlan` and `MirrorPlan` into the launch plan; the agent of the first host runs the rules and
reports `RuleFacts`; `control.jobs.rules.rule_evaluations` derives statuses from them.
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
    rule: str  # name of a built-in class, or of a class in `source_uri`
    source_uri: str = ""  # s3:// URI of the Python file with the class; empty for built-in rules
    other_trials: tuple[str, ...] = ()  # s3:// prefixes of other trainings' tensors
    parameters: Mapping[str, str] = field(default_factory=dict)  # parameters of the rule itself


@dataclass(frozen=True, kw_only=True)
class MirrorPlan:
    """A folder whose files are copied to the object store while the program runs, and at its end."""

    what: str  # in words, for example: tensors
    local_path: str  # as the program sees it
    s3_uri: str  # prefix of the files' keys
    marks_end: bool = False  # whether the end of the program is marked in it, as trials expect


@dataclass(frozen=True, kw_only=True)
class RuleFacts:
    """State of a rule, as reported by the host that runs it."""

    name: str
    status: RuleStatus
    details: str = ""  # at most MAX_DETAILS_CHARACTERS


def host_end(host: str, *, attempt: int, num_hosts: int) -> str:
    """Return the file, below a mirrored folder, by which one of several hosts marks the end of its program.

    Readers of a training's tensors count the names: the training has ended when one attempt has `num_hosts` such files.

    Args:
        host: its name.
        attempt: of the job.
        num_hosts: of the job.
    """
    return f"ended/{host}.try-{attempt}.of-{num_hosts}"
