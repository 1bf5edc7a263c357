"""The resume certificate: lost, repeated and missed work of a rehearsal, and a verdict with its reason. Pure.

Where: `clary rehearse` makes a certificate at the end, prints it (`cli.certificate_words`) and writes it as JSON.

[Note: order of causes]
One mistake has several effects: a sampler that begins anew changes losses, too. So the checks run in a fixed order, and
the first fault found decides: first the job's end, then its steps, its samples, and last its losses. Different losses
are attributed to the optimizer's state only if steps and samples are right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from clary.base.errors import Fault
from clary.contract.failure_reasons import FULL_DISK, PREFIXES
from clary.control.rehearsal.comparing import LossCheck, SampleCheck, check_losses, check_samples
from clary.control.rehearsal.faults import FaultKind
from clary.control.rehearsal.history import Attempt, History, Resume, make_history, scale_of

COMPLETED = "Completed"
_DYING_S = 10.0  # longest time from a failed write to the end of the program


class Verdict(StrEnum):
    """The verdict of a certificate."""

    PASS = "PASS"  # noqa: S105 - no password
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One of the two jobs, as it ended."""

    name: str
    status: str  # TrainingJobStatus
    failure_reason: str = ""
    attempts: tuple[Attempt, ...]
    wall_s: float = 0.0  # seconds from creation to end
    lost_s: float = 0.0  # host seconds of repeated training, from the ledger
    metrics: Mapping[str, float] = field(default_factory=dict)
    has_checkpoints: bool = True  # whether the request has a CheckpointConfig with S3Uri
    failed_host: str = ""  # host whose failure is the first cause; empty if there is no failure, or if it is unknown
    failed_at_s: float | None = None  # seconds after training first began; None if unknown, or if nothing failed


@dataclass(frozen=True, kw_only=True)
class Strike:
    """The outcome of a planned fault."""

    words: str
    at_s: float | None  # seconds after training began; None: not carried out
    note: str = ""  # why the fault was not carried out, or its effect
    kind: str = ""  # FaultKind
    hosts: tuple[str, ...] = ()
    length_s: float | None = None  # None: until the hosts are released


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """A resume, with the names of its steps."""

    attempt: int
    why: str
    last_step: str  # last step printed before the resume, or empty
    first_step: str  # first step printed after the resume, or empty
    lost_steps: int | None
    restored_files: int


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The certificate that `clary rehearse` writes."""

    verdict: Verdict
    reason: str
    advice: str  # how to remove the cause of the verdict; empty for a PASS
    twin: str
    rehearsal: str
    strikes: tuple[Strike, ...]
    interruptions: tuple[Interruption, ...]
    steps_lost: int
    seconds_lost: float | None  # wall time of the rehearsal less the twin's; None if the rehearsal did not run
    redone_s: float  # host seconds of repeated training
    samples: SampleCheck
    losses: LossCheck
    metrics: Mapping[str, tuple[float | None, float | None]]  # metric -> last values of twin and rehearsal


def certify(twin: Run, rehearsal: Run, strikes: Sequence[Strike]) -> Certificate:
    """Compare the rehearsal with its undisturbed twin, and return the certificate.

    Args:
        twin: undisturbed job, whose last attempt is the reference.
        rehearsal: the job under faults, with all its attempts.
        strikes: outcome of each planned fault.
    """
    last_of_twin = twin.attempts[-1] if twin.attempts else Attempt(number=1, readings=())
    scale = scale_of(last_of_twin.readings)
    twin_history = make_history([last_of_twin], scale, last_of_twin)
    history = make_history(rehearsal.attempts, scale, last_of_twin)
    samples = check_samples(twin_history.samples, history.samples)
    losses = check_losses(twin_history, history, scale)
    interruptions = tuple(
        Interruption(
            attempt=resume.attempt,
            why=resume.why,
            last_step="" if resume.last is None else scale.name(resume.last),
            first_step="" if resume.first is None else scale.name(resume.first),
            lost_steps=resume.lost_steps,
            restored_files=resume.restored_files,
        )
        for resume in history.resumes
    )
    judgement = (
        _of_ends(twin, rehearsal, strikes)
        or _of_steps(twin, rehearsal, history, interruptions)
        or _of_samples(samples)
        or _of_losses(samples, losses)
        or _passed(samples, losses)
    )
    names = sorted(twin.metrics.keys() | rehearsal.metrics.keys())
    return Certificate(
        verdict=judgement[0],
        reason=judgement[1],
        advice=judgement[2],
        twin=twin.name,
        rehearsal=rehearsal.name,
        strikes=tuple(strikes),
        interruptions=interruptions,
        steps_lost=sum(max(0, resume.lost_steps or 0) for resume in history.resumes),
        seconds_lost=round(rehearsal.wall_s - twin.wall_s, 1) if rehearsal.attempts else None,
        redone_s=round(rehearsal.lost_s, 1),
        samples=samples,
        losses=losses,
        metrics={name: (twin.metrics.get(name), rehearsal.metrics.get(name)) for name in names},
    )


_Judgement = tuple[Verdict, str, str]


def _of_ends(twin: Run, rehearsal: Run, strikes: Sequence[Strike]) -> _Judgement | None:
    if twin.status != COMPLETED:
        why = f": {twin.failure_reason}" if twin.failure_reason else ""
        fills_disk = any(strike.kind == FaultKind.DISK_FULL for strike in strikes)
        is_too_small = fills_disk and FULL_DISK in twin.failure_reason
        return (
            Verdict.INCONCLUSIVE,
            f"the twin ended {twin.status} without any fault{why}",
            "its disk is too small for the job: give a larger --disk-size"
            if is_too_small
            else "make the job run first",
        )
    if len(twin.attempts) > 1:
        reason = f"the twin was interrupted itself: {twin.attempts[0].end}"
        return Verdict.INCONCLUSIVE, reason, "rehearse again when nothing disturbs it"
    if rehearsal.status != COMPLETED:
        why = f": {rehearsal.failure_reason}" if rehearsal.failure_reason else ""
        if _died_of_full_disk(rehearsal, strikes):
            return _full_disk(rehearsal, why)
        return Verdict.FAIL, f"the job did not come back: it ended {rehearsal.status}{why}", "read its log"
    missed = [strike for strike in strikes if strike.at_s is None]
    if missed:
        reason = f"{missed[0].words}: it never struck: {missed[0].note}"
        return Verdict.INCONCLUSIVE, reason, "choose an earlier moment"
    return None


def _died_of_full_disk(rehearsal: Run, strikes: Sequence[Strike]) -> bool:
    has_struck = any(_was_full(strike, rehearsal) for strike in strikes)
    return has_struck and (FULL_DISK in rehearsal.failure_reason or "Errno 28" in rehearsal.failure_reason)


def _was_full(strike: Strike, rehearsal: Run) -> bool:
    """Whether a disk-full fault lasted on the failed host when the host failed; true if host or time is unknown."""
    if strike.kind != FaultKind.DISK_FULL or strike.at_s is None:
        return False
    if rehearsal.failed_host and strike.hosts and rehearsal.failed_host not in strike.hosts:
        return False
    if strike.length_s is None or rehearsal.failed_at_s is None:
        return True
    return rehearsal.failed_at_s <= strike.at_s + strike.length_s + _DYING_S


def _full_disk(rehearsal: Run, why: str) -> _Judgement:
    if rehearsal.failure_reason.startswith(PREFIXES[Fault.USER]):  # the program ended with 0 on a full disk
        return (
            Verdict.FAIL,
            f"the program ended on a full disk, and what it wrote last is missing or cut short: it ended "
            f"{rehearsal.status}{why}",
            "end with an error when results cannot be written; to see it go on once there is room again, give the "
            "fault a length: algo-1@step:120+30s",
        )
    return (
        Verdict.FAIL,
        f"the program itself died of the full disk, and a program that fails so is not tried again: it ended "
        f"{rehearsal.status}{why}",
        "catch OSError (ENOSPC) where checkpoints are written, keep the last whole one and train on: write to another "
        "name, rename when it is complete, remove older ones first",
    )


def _of_steps(twin: Run, rehearsal: Run, history: History, interruptions: Sequence[Interruption]) -> _Judgement | None:
    if not twin.attempts or not any(attempt.readings for attempt in twin.attempts):
        return (
            Verdict.INCONCLUSIVE,
            "no step was found in the twin's log",
            "say how steps look with --step-regex, or give the request MetricDefinitions",
        )
    for resume, shown in zip(history.resumes, interruptions, strict=True):
        if resume.last is None:
            continue  # interrupted before the first step: nothing to resume
        if resume.first is None:
            if resume is history.resumes[-1] and _has_more(resume, twin):
                reason = f"after attempt {resume.attempt} no step was printed any more, and the job ended nevertheless"
                return Verdict.FAIL, reason, "the program must train on from its checkpoint, not end"
            continue
        if resume.is_from_start:
            return _began_anew(twin, rehearsal, resume, shown)
        if resume.lost_steps is not None and resume.lost_steps < 0:
            reason = f"steps between {shown.last_step} and {shown.first_step} were done in no attempt"
            return (
                Verdict.FAIL,
                f"{reason}: the step that the checkpoint names lies ahead of what it holds",
                "save the number of the step together with the state, and go on from it",
            )
    return None


def _has_more(resume: Resume, twin: Run) -> bool:
    """Whether the twin printed steps after the last step that the rehearsal printed before the interruption."""
    num_steps = len(scale_of(twin.attempts[-1].readings).steps)
    return resume.last is not None and resume.last < num_steps - 1


def _began_anew(twin: Run, rehearsal: Run, resume: Resume, shown: Interruption) -> _Judgement:
    began = f"after step {shown.last_step} they begin at {shown.first_step} again"
    if not rehearsal.has_checkpoints:
        return (
            Verdict.FAIL,
            f"{began}: the job has no checkpoints that could be restored",
            "give it checkpoint_s3_uri (CheckpointConfig), write checkpoints to /opt/ml/checkpoints and read them",
        )
    if resume.restored_files:
        files = "1 file was" if resume.restored_files == 1 else f"{resume.restored_files} files were"
        return (
            Verdict.FAIL,
            f"{began} though {files} restored: the checkpoint is never read",
            "look for the newest checkpoint when the program begins, and load it before the first step",
        )
    if twin.attempts[-1].stored_sets == 0:
        return (
            Verdict.FAIL,
            f"{began}: the program writes no checkpoint to the folder of CheckpointConfig",
            "write checkpoints to LocalPath (/opt/ml/checkpoints) as the training goes on",
        )
    return (
        Verdict.INCONCLUSIVE,
        f"{began}: no checkpoint had been stored yet",
        "strike later, or write checkpoints more often",
    )


def _of_samples(samples: SampleCheck) -> _Judgement | None:
    if not samples.is_known or samples.is_whole:
        return None
    reason = (
        f"{samples.num_twice} samples were seen once too often and {samples.num_never} once too seldom, of "
        f"{samples.num_compared} drawn: the sampler's place in the data is not restored"
    )
    if not samples.is_sure:
        return Verdict.INCONCLUSIVE, f"{reason}, or steps were lined up wrongly ({samples.words})", "print each step"
    return (
        Verdict.FAIL,
        reason,
        "save how far the data was read, with the sampler's seed and epoch, and go on behind that",
    )


def _of_losses(samples: SampleCheck, losses: LossCheck) -> _Judgement | None:
    if losses.num_compared == 0:
        reason = "no losses were found for the same steps, so it is unknown what was restored"
        return Verdict.INCONCLUSIVE, reason, "say how losses look with --loss-regex"
    if not losses.is_comparable:
        reason = f"losses differ by up to {losses.noise:.1%} before any fault: no curve can be compared"
        return Verdict.INCONCLUSIVE, reason, "fix the seeds of the program"
    if losses.parts_at is None:
        return None
    behind = losses.parts_after_resume
    where = "" if behind is None else f", {_ordinal(behind)} after the resume,"
    reason = f"the loss parts from the twin's at step {losses.parts_at}{where} {losses.there} for {losses.twin_there}"
    if behind is None:
        return (
            Verdict.INCONCLUSIVE,
            f"{reason}, and nothing was resumed before: the fault has changed the result, or each run of the program "
            "gives other losses",
            "fix the seeds of the program, and rehearse again",
        )
    if samples.is_whole:
        return (
            Verdict.FAIL,
            f"{reason}, though samples are right: the state of the optimizer (or of scheduler, scaler or random "
            "numbers) is not restored",
            "save optimizer.state_dict() with the model, and the scheduler's and random generators' where they are "
            "used",
        )
    return (
        Verdict.FAIL,
        f"{reason}; samples: {samples.words}: the state of the optimizer, or the place in the data, is not restored",
        "save and load optimizer.state_dict() and how far the data was read",
    )


def _passed(samples: SampleCheck, losses: LossCheck) -> _Judgement:
    if losses.num_equal == losses.num_compared:
        curve = f"all {losses.num_compared} losses are equal to the twin's, as printed"
    else:
        curve = f"losses stay within {losses.largest:.2g} of the twin's, {losses.noise:.2g} without a fault"
    seen = "each sample was seen as often as by the twin" if samples.is_whole else f"samples: {samples.words}"
    return Verdict.PASS, f"{curve}; {seen}", ""


def _ordinal(number: int) -> str:
    names = {1: "the first", 2: "the second", 3: "the third"}
    return f"{names.get(number, f'the {number}th')} printed"
