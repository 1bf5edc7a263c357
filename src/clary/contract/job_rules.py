"""Plans and facts of rules that run next to a job's program, and of folders that are mirrored while it runs.

Where: the service puts `RulePlan` and `MirrorPlan` into the launch plan; the agent of the first host runs the rules and
reports `RuleFacts`; `control.jobs.rules.rule_evaluations` derives statuses from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clary.contract.statuses import RuleStatus

MAX_DETAILS_CHARACTERS = 1024  # limit of StatusDetails


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

    what: str  # name of the content for messages, for example: tensors
    local_path: str  # path as the program sees it
    s3_uri: str  # prefix of the files' keys
    # whether a file in it marks the end of the program, as readers of the tensors (trials) expect
    marks_end: bool = False


@dataclass(frozen=True, kw_only=True)
class RuleFacts:
    """State of a rule, as reported by the host that runs it."""

    name: str
    status: RuleStatus
    details: str = ""  # at most MAX_DETAILS_CHARACTERS


def host_end(host: str, *, attempt: int, num_hosts: int) -> str:
    """Return the path, below a mirrored folder, of the file by which a host of several marks its program's end.

    Readers of a training's tensors count these files: the training has ended when one attempt has `num_hosts` of them.

    Args:
        host: name of the host.
        attempt: number of the attempt.
        num_hosts: number of hosts of the job.
    """
    return f"ended/{host}.try-{attempt}.of-{num_hosts}"
