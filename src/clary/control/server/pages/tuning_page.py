"""Pages of tuning jobs: the list of tuning jobs, and each tuning job with its trials.

Where: the answers to /clary/v1/tuning and /clary/v1/tuning/NAME; the console and `clary tuning` show them.

    {"tuning_jobs": [{"name", "status", "strategy", "objective": {"metric", "is_maximized"}, "counters", "num_trials",
      "max_trials", "best": {"number", "job", "value", "parameters"}, "created_at", "ended_at", "end_reason"}]}

The page of a tuning job has the members of its row, the members of `tuning_facts.facts_of`, and

    {"trials": [{"number", "job", "definition", "metric", "status", "state", "value", "parameters", "created_at",
      "started_at", "ended_at", "continues", "stop_reason", "failure_reason", "curve"}],
           metric: name of its definition's objective; continues: number of the trial whose checkpoints it continues,
           or 0; curve: values of the objective, 200 at most
     "best_so_far": [[number of the trial, ended at, best value]],         in the order of ends; times in milliseconds
     "importance": {hyperparameter: share}, or null and "importance_why"}

The console polls every few seconds, so facts that cannot change are cached: rows of ended tuning jobs, and importance
shares until another trial ends with a value.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from typing import Any

from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.contract.statuses import TrainingJobStatus
from clary.control.jobs.job_state import job_state
from clary.control.jobs.training_job import TrainingJob
from clary.control.services.call import Services
from clary.control.services.tuning.tuning_acts import stop_tuning
from clary.control.services.tuning_answers import trial_status
from clary.control.services.tuning_descriptions import live_jobs
from clary.control.store.tracking.tuning_records import TuningJobNotFound, TuningQuery
from clary.control.tuning.importance import Importance, importance_of
from clary.control.tuning.tuning_facts import facts_of, few, row_of
from clary.control.tuning.tuning_job import Trial, TuningJob
from clary.control.tuning.tuning_request import TuningRequest

MAX_LISTED = 100
MAX_VALUES = 200  # maximum number of values in a trial's curve
MAX_KEPT = 200  # maximum number of cached facts of each kind
_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")


class TuningPages:
    """Answers for all tuning jobs.

    Args:
        services: store and live jobs.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}  # rows of ended tuning jobs
        self._importance: dict[tuple[str, str], tuple[int, Importance]] = {}  # (number of values, shares)

    async def listed(self) -> dict[str, Any]:
        """Return the newest tuning jobs, the newest first."""
        records = self._services.store.tuning
        jobs, _ = await records.page(TuningQuery(), max_results=MAX_LISTED, next_token=None)
        return {"tuning_jobs": [await self._row(job) for job in jobs]}

    async def page(self, name: str) -> dict[str, Any]:
        """Return the page of a tuning job. Raises: WireError 404."""
        job = await self._find(name)
        trials = await self._services.store.tuning.trials(job.name)
        live = live_jobs(self._services, trials)
        importance = await self._importance_of(job, trials)
        return {
            **facts_of(job, trials),
            "trials": [await self._trial(job, trial, live.get(trial.job_name)) for trial in trials],
            "importance": None if importance.shares is None else dict(importance.shares),
            "importance_why": importance.why,
        }

    async def stop(self, name: str) -> dict[str, Any]:
        """Stop a tuning job and its trials. Raises: WireError 404, and 400 for an ended tuning job."""
        job = await self._find(name)
        try:
            changed = await stop_tuning(self._services, job)
        except TuningJobNotFound as error:
            raise _not_found(name) from error
        return {"name": changed.name, "status": changed.status.value}

    async def _find(self, name: str) -> TuningJob:
        job = await self._services.store.tuning.get(name) if _NAME.fullmatch(name) else None
        if job is None:
            raise _not_found(name)
        return job

    async def _row(self, job: TuningJob) -> dict[str, Any]:
        key = _key(job)
        if key in self._rows:
            return self._rows[key]
        row = row_of(job, await self._services.store.tuning.trials(job.name))
        if job.is_terminal:
            _keep(self._rows, key, row)
        return row

    async def _importance_of(self, job: TuningJob, trials: Sequence[Trial]) -> Importance:
        key, num_known = _key(job), sum(trial.value is not None for trial in trials)
        kept = self._importance.get(key)
        if kept is not None and kept[0] == num_known:
            return kept[1]
        found = await asyncio.to_thread(importance_of, TuningRequest(job.request).definitions, trials)
        _keep(self._importance, key, (num_known, found))
        return found

    async def _trial(self, job: TuningJob, trial: Trial, live: TrainingJob | None) -> dict[str, Any]:
        status = trial_status(trial, live)
        outcome = trial.outcome
        started_at = None if live is None else live.training_started_at
        return {
            "number": trial.number,
            "job": trial.job_name,
            "definition": trial.definition,
            "metric": TuningRequest(job.request).objective_of(trial.definition).metric,
            "status": status.value,
            "state": status.value if live is None else job_state(live).value,
            "value": trial.value,
            "parameters": dict(trial.parameters),
            "created_at": to_plain(trial.created_at),
            "continues": trial.continues,
            "started_at": to_plain(started_at if outcome is None else outcome.training_started_at),
            "ended_at": to_plain(None if outcome is None else outcome.training_ended_at),
            # A training job that completed before the stop reached it was not ended early.
            "stop_reason": "" if status is TrainingJobStatus.COMPLETED else trial.stop_reason,
            "failure_reason": "" if outcome is None else outcome.failure_reason,
            "curve": few(outcome.curve, MAX_VALUES)
            if outcome is not None
            else await self._live_curve(job, trial, live),
        }

    async def _live_curve(self, job: TuningJob, trial: Trial, live: TrainingJob | None) -> list[float]:
        """Return the values that a trial has reported so far."""
        metric = TuningRequest(job.request).objective_of(trial.definition).metric
        if live is None or not any(one.name == metric for one in live.final_metrics):
            return []
        curves = await self._services.store.curves.curves(live.name, names=[metric], num_points=MAX_VALUES)
        values = [point.value for point in curves.get(metric, ())]
        return few([value for value in values if value is not None and math.isfinite(value)], MAX_VALUES)


def tuning_name(job: TrainingJob) -> str:
    """Return the name of the tuning job whose trial a job is; empty for any other job."""
    return job.tuning_job_arn.rpartition("/")[2]


def _not_found(name: str) -> WireError:
    return WireError("NotFound", f"there is no tuning job {name[:100]!r}", http_status=404)


def _key(job: TuningJob) -> tuple[str, str]:
    """Return a key that differs for every tuning job, even for tuning jobs of the same name."""
    return job.arn, job.created_at.isoformat()


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    kept.pop(key, None)
    while len(kept) >= MAX_KEPT:
        del kept[next(iter(kept))]
    kept[key] = value
