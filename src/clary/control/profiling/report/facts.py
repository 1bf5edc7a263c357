"""The facts in a report other than measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from clary.control.profiling.rule import ProfilerRule, Verdict


@dataclass(frozen=True, kw_only=True)
class ReportHost:
    """One host of the plan."""

    name: str
    instance_type: str
    num_cpus: float
    num_gpus: int
    num_processes: int
    seconds: Mapping[str, float] = field(default_factory=dict)  # part of the ledger -> seconds


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """A rule with its verdict."""

    rule: ProfilerRule
    verdict: Verdict
    earlier: str = ""  # the rule's finding while the job ran, if the final verdict has no issue

    @property
    def fires(self) -> bool:
        """Whether the rule has an issue, now or earlier."""
        return self.verdict.has_issue or bool(self.earlier)


@dataclass(frozen=True, kw_only=True)
class ReportFacts:
    """The facts of a job other than its series; its owner may choose the texts, and the report escapes them."""

    job_name: str
    status: str
    secondary_status: str
    image: str = ""
    environment: str = ""
    failure_reason: str = ""
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    written_at: datetime
    wall_s: float = 0.0
    goodput: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)  # part of the ledger -> seconds of all hosts
    num_attempts: int = 1
    hosts: Sequence[ReportHost] = ()
    num_dropped: int = 0  # dropped rows
    damaged: Sequence[str] = ()  # blocks of series that could not be read
    straggler: str = ""  # a sentence on the rank that the others wait for, or on its absence
    straggler_evidence: Sequence[str] = ()
    has_straggler: bool = False
    version: str = ""
