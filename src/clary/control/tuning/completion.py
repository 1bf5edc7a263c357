"""The next act of a tuning job: start trials, wait, or end. Pure.

Where: the tuning keeper calls `decide` after each change of a trial and every few seconds, and carries out the
decision. Source: ResourceLimits, TuningJobCompletionCriteria (AWS API reference); "Completion criteria" (developer
guide).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from clary.contract.statuses import TrainingJobStatus
from clary.control.tuning.parameter_space import num_values
from clary.control.tuning.standing import best_of, in_order_of_ends, num_not_improving
from clary.control.tuning.tuning_job import Trial, TuningJob, TuningStatus
from clary.control.tuning.tuning_request import Definition, TuningRequest

CONVERGENCE_LEAST_TRIALS = 10
CONVERGENCE_PART = 0.3  # share of the trials that must have ended in a row without improving the best value
CONVERGENCE_GAIN = 0.01  # share of the spread of all values; a smaller gain is no improvement
# minimum number of failed trials, without any success before, from which further trials are expected to fail as well
LEAST_FAILURES = 5


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The next act of a tuning job."""

    num_starts: int = 0  # trials to start now
    ends_as: TuningStatus | None = None  # status after the last trial has ended; no further trial starts
    stops_running: bool = False  # whether running trials are stopped
    reason: str = ""  # a sentence
    has_converged: bool = False


def decide(job: TuningJob, trials: Sequence[Trial], *, now: datetime) -> Decision:
    """Return the next act of a tuning job that is in progress.

    Args:
        job: the record.
        trials: all trials of the job.
        now: present time on the job's own clock.
    """
    request = TuningRequest(job.request)
    running = [trial for trial in trials if not trial.is_over]
    if (end := _end(job, request, trials, now)) is not None:
        return end
    most = max_trials(request)
    left = request.max_parallel if most is None else most - len(trials)
    if left <= 0 and not running:
        return _finish(trials)
    return Decision(num_starts=max(0, min(left, request.max_parallel - len(running))))


def final_end(job: TuningJob, trials: Sequence[Trial]) -> tuple[TuningStatus, str]:
    """Return the final status of a tuning job and its reason.

    A tuning job that would be Completed is Failed if no trial has a value: a running trial may report its only value
    after the end was decided.

    Args:
        job: the record; its end has been decided.
        trials: all trials of the job, which have ended.
    """
    assert job.ends_as is not None, "only tuning jobs that end"
    if job.ends_as is TuningStatus.COMPLETED and _is_without_value(trials):
        return TuningStatus.FAILED, f"{job.end_reason}. {_no_value(trials)}"[:1024]
    return job.ends_as, job.end_reason


def max_trials(request: TuningRequest) -> int | None:
    """Return the largest number of trials; None if only other limits end the tuning job."""
    if request.strategy == "Grid":
        whole = sum(num_values(one.space) or 0 for one in request.definitions)
        return whole if request.max_jobs is None else min(whole, request.max_jobs)
    return request.max_jobs


def next_definition(request: TuningRequest, trials: Sequence[Trial]) -> Definition:
    """Return the next trial's definition: the one with the fewest trials; for Grid, the first with points left."""
    counts: Mapping[str, int] = {
        one.name: sum(trial.definition == one.name for trial in trials) for one in request.definitions
    }
    if request.strategy == "Grid":
        return next(one for one in request.definitions if counts[one.name] < (num_values(one.space) or 0))
    return min(request.definitions, key=lambda one: counts[one.name])


def _end(job: TuningJob, request: TuningRequest, trials: Sequence[Trial], now: datetime) -> Decision | None:
    completed = TuningStatus.COMPLETED
    if request.max_runtime_s is not None and (now - job.created_at).total_seconds() >= request.max_runtime_s:
        reason = f"MaxRuntimeInSeconds {request.max_runtime_s} is over"
        return Decision(ends_as=completed, stops_running=True, reason=reason)
    over = [trial for trial in trials if trial.outcome is not None]
    broken = [trial for trial in over if _is_broken(trial)]
    if len(broken) == len(over) >= max(LEAST_FAILURES, request.max_parallel):
        reason = f"All {len(over)} training jobs that have ended gave no objective; the first: {_first_reason(broken)}"
        return Decision(ends_as=TuningStatus.FAILED, stops_running=True, reason=reason[:1024])
    objective = request.objective
    best = best_of(trials, objective)
    target = request.target_value
    if (
        best is not None
        and best.value is not None
        and target is not None
        and not objective.is_better(target, best.value)
    ):
        reason = f"{best.job_name} has reached the target {target:g} with {best.value:g}"
        return Decision(ends_as=completed, stops_running=True, reason=reason)
    most = request.max_not_improving
    if most is not None and num_not_improving(trials, objective) >= most:
        reason = f"{most} training jobs in a row have not improved the best objective"
        return Decision(ends_as=completed, stops_running=True, reason=reason)
    if request.ends_on_convergence and has_converged(trials, is_maximized=objective.is_maximized):
        reason = "the objective has converged"
        return Decision(ends_as=completed, stops_running=True, reason=reason, has_converged=True)
    return None


def has_converged(trials: Sequence[Trial], *, is_maximized: bool) -> bool:
    """Whether the last trials have improved the best value by at most CONVERGENCE_GAIN of the spread.

    Args:
        trials: all trials of a tuning job.
        is_maximized: whether greater values are better.
    """
    values = [trial.value for trial in in_order_of_ends(trials) if trial.value is not None]
    window = max(CONVERGENCE_LEAST_TRIALS, round(CONVERGENCE_PART * len(values)))
    if len(values) < 2 * window:
        return False
    sign = 1.0 if is_maximized else -1.0
    before = max(sign * value for value in values[:-window])
    after = max(sign * value for value in values)
    spread = max(values) - min(values)
    return after - before <= CONVERGENCE_GAIN * spread


def _finish(trials: Sequence[Trial]) -> Decision:
    if _is_without_value(trials):
        return Decision(ends_as=TuningStatus.FAILED, reason=_no_value(trials)[:1024])
    return Decision(ends_as=TuningStatus.COMPLETED, reason="all training jobs have ended")


def _is_without_value(trials: Sequence[Trial]) -> bool:
    return bool(trials) and all(trial.value is None for trial in trials)


def _no_value(trials: Sequence[Trial]) -> str:
    return f"No training job has reported a value of the objective; the first: {_first_reason(trials)}"


def _is_broken(trial: Trial) -> bool:
    """Whether a trial's program failed or completed without an objective; further trials would do the same."""
    assert trial.outcome is not None, "only ended trials"
    if trial.outcome.status is TrainingJobStatus.COMPLETED:
        return trial.outcome.value is None
    return trial.outcome.status is TrainingJobStatus.FAILED and not trial.outcome.is_retryable


def _first_reason(trials: Sequence[Trial]) -> str:
    for trial in sorted(trials, key=lambda one: one.number):
        if trial.outcome is not None and trial.outcome.failure_reason:
            return f"{trial.job_name}: {trial.outcome.failure_reason}"
    return f"{trials[0].job_name} reported no value of the objective"
