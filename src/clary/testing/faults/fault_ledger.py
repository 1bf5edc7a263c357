"""The promises to every accepted job, judged from facts that clients can see. Pure.

Where: `fault_audit` gathers a job's evidence, `fault_fleet` judges it, `fault_run` counts the violations. The ledger is
the driver's own record; from the service it takes only answers that a client would get.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from clary.testing.faults.fault_plan import FaultKind, JobSpec
from clary.testing.faults.fault_program import DONE_LINE, STARTED_LINE, expected_lines

TERMINAL = ("Completed", "Failed", "Stopped")


class Harm(StrEnum):
    """The kind of harm of a violated promise."""

    LOST = "lost"  # a job, a line, a result, or the reason of a failure
    DOUBLED = "doubled"  # a job, a start, a line; a terminal status that changed; work after the end
    HUNG = "hung"  # a job without end, a call without answer, or remains of a job


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One broken promise."""

    harm: Harm
    job: str  # empty if the promise concerns no single job
    what: str

    def __str__(self) -> str:
        return f"{self.harm.value.upper()} {self.job or 'service'}: {self.what}"


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The facts of an ended job in DescribeTrainingJob that must never change again."""

    status: str
    reason: str
    artifact: str
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence that a job has left behind."""

    ending: Ending
    lines: Mapping[str, Sequence[str]]  # host -> its log
    num_starts: Mapping[str, int]  # host -> starts recorded in the object store
    artifact_trouble: str = ""  # defect of the stored artifact; empty if it is intact or missing
    has_artifact: bool = False
    files: Mapping[str, bool] = field(default_factory=dict)  # name in the artifact -> whether its bytes are right


# A failure is explained if a fault of one of these kinds struck the job, and its reason contains one of the kind's
# texts.
MAY_FAIL: dict[FaultKind, tuple[str, ...]] = {
    FaultKind.KILL_AGENT: ("agent",),
    FaultKind.KILL_PROGRAM: ("SIGKILL", "signal 9", "exit code"),
    FaultKind.KILL_NETWORK: ("network", "namespace", "was lost", "link"),
    FaultKind.CUT_HOSTS: ("link has carried nothing",),
    FaultKind.FILL_HOME: ("No space left", "disk", "object store runs and is not full"),
    FaultKind.FILL_HOSTS: ("No space left", "disk"),
    # At its start, the service releases the hosts of a job whose record is unreadable.
    FaultKind.SPOIL_ROW: ("agent", "taken back"),
    FaultKind.TEAR_SPOOL: ("agent",),
}

DISK_KINDS = {FaultKind.FILL_HOME, FaultKind.FILL_HOSTS}
_LOSS_NOTICE = re.compile(r"clary: (\d+) lines? .*lost here")


def judge(spec: JobSpec, evidence: Evidence, struck_by: Collection[FaultKind]) -> list[Violation]:
    """Return the promises that the service broke for a job.

    Args:
        spec: the job that was requested.
        evidence: evidence gathered after the job's end.
        struck_by: the kinds of faults that struck during the job's life.
    """
    found = _judge_ending(spec, evidence, struck_by)
    is_whole = evidence.ending.status == "Completed" or _failed_by_itself(spec, evidence.ending)
    for host in spec.hosts:
        found += _judge_lines(spec, host, evidence.lines.get(host, ()), set(struck_by), is_whole=is_whole)
        if evidence.num_starts.get(host, 0) > 1:
            what = f"the program of {host} was started {evidence.num_starts[host]} times"
            found.append(_violation(Harm.DOUBLED, spec, what))
    return found + _judge_artifact(spec, evidence, is_whole=is_whole)


def compare_endings(name: str, first: Ending, later: Ending) -> list[Violation]:
    """Return the changes of a terminal job as violations.

    Args:
        name: name of the job.
        first: end in the first description.
        later: end in a later description; any difference is a violation.
    """
    if first == later:
        return []
    return [Violation(harm=Harm.DOUBLED, job=name, what=f"its end changed from {first} to {later}")]


def compare_lists(
    accepted: Mapping[str, Ending | None], listed: Sequence[tuple[str, str]], created_meanwhile: Collection[str] = ()
) -> list[Violation]:
    """Compare the accepted jobs and their known ends with ListTrainingJobs.

    Args:
        accepted: name -> end, as known before the list was requested.
        listed: (name, status) as listed.
        created_meanwhile: names of jobs that the list may contain or lack.
    """
    found = []
    names = [name for name, _ in listed]
    for name in sorted(set(names)):
        if names.count(name) > 1:
            found.append(Violation(harm=Harm.DOUBLED, job=name, what=f"listed {names.count(name)} times"))
        if name not in accepted and name not in created_meanwhile:
            found.append(Violation(harm=Harm.DOUBLED, job=name, what="listed, and nobody created it"))
    statuses = dict(listed)
    for name, ending in accepted.items():
        if name not in statuses:
            found.append(Violation(harm=Harm.LOST, job=name, what="accepted and not listed"))
        elif ending is not None and statuses[name] != ending.status:
            what = f"it had ended {ending.status} and is listed as {statuses[name]}"
            found.append(Violation(harm=Harm.DOUBLED, job=name, what=what))
    return found


def _judge_ending(spec: JobSpec, evidence: Evidence, struck_by: Collection[FaultKind]) -> list[Violation]:
    ending = evidence.ending
    if ending.status == "Completed":
        if spec.exit_code:
            return [_violation(Harm.LOST, spec, f"Completed, and its program ends with {spec.exit_code}")]
        return []
    if ending.status == "Stopped":
        return [_violation(Harm.LOST, spec, "Stopped, and nobody asked for that")]
    if not ending.reason:
        return [_violation(Harm.LOST, spec, "Failed without a reason")]
    if _failed_by_itself(spec, ending):
        return []
    to_blame = [kind for kind in struck_by if kind in MAY_FAIL]
    if any(word in ending.reason for kind in to_blame for word in MAY_FAIL[kind]):
        return []
    met = ", ".join(sorted(struck_by)) or "no fault"
    return [_violation(Harm.LOST, spec, f"failed, which {met} does not account for: {ending.reason}")]


def _failed_by_itself(spec: JobSpec, ending: Ending) -> bool:
    return ending.status == "Failed" and bool(spec.exit_code) and f"xit code: {spec.exit_code}" in ending.reason


def _judge_lines(
    spec: JobSpec, host: str, lines: Sequence[str], struck_by: AbstractSet[FaultKind], *, is_whole: bool
) -> list[Violation]:
    """Compare a host's log with its program's lines; only a full disk may lose lines, and the log must report it."""
    num_starts = sum(line.startswith(STARTED_LINE) for line in lines)
    if num_starts > 1:
        return [_violation(Harm.DOUBLED, spec, f"{host} has logged {num_starts} starts")]
    wanted = [STARTED_LINE, *expected_lines(spec.name, spec.num_lines), DONE_LINE]
    place = 0
    for index, line in enumerate(lines):
        notice = _LOSS_NOTICE.match(line)
        if notice and struck_by & DISK_KINDS:
            place += int(notice[1])
        elif line.startswith(("line ", STARTED_LINE, DONE_LINE)):
            if place >= len(wanted) or not line.startswith(wanted[place]) or (line != wanted[place] and place):
                harm = Harm.DOUBLED if line in lines[:index] else Harm.LOST
                around = list(lines[max(0, index - 2) : index + 2])
                return [_violation(harm, spec, f"the log of {host} is out of order at line {index + 1}: {around}")]
            place += 1
    # One host of a gang may fail before the other hosts have printed all lines.
    if is_whole and (spec.num_hosts == 1 or not spec.exit_code) and place < len(wanted):
        return [_violation(Harm.LOST, spec, f"the log of {host} has {place} of {len(wanted)} lines")]
    return []


def _judge_artifact(spec: JobSpec, evidence: Evidence, *, is_whole: bool) -> list[Violation]:
    if evidence.artifact_trouble:
        return [_violation(Harm.LOST, spec, f"its artifact is not whole: {evidence.artifact_trouble}")]
    wrong = [name for name, is_right in evidence.files.items() if not is_right]
    if wrong:
        return [_violation(Harm.LOST, spec, f"its artifact has wrong bytes in {', '.join(wrong)}")]
    if evidence.ending.status == "Completed" and is_whole:
        missing = [f"{host}.bin" for host in spec.hosts if f"{host}.bin" not in evidence.files]
        if missing:
            return [_violation(Harm.LOST, spec, f"Completed, and its artifact lacks {', '.join(missing)}")]
    return []


def _violation(harm: Harm, spec: JobSpec, what: str) -> Violation:
    return Violation(harm=harm, job=spec.name, what=what)
