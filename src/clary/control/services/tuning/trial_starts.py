"""Starts the trials of a tuning job: gets a proposal from the search, and stores the trial with its training job.

Where: `tuning_keeper` calls it. Training jobs are created by the same function as clients' training jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from clary.control.services.call import Call, Services
from clary.control.services.sagemaker.training_jobs import store_training_job
from clary.control.services.tuning.instance_configs import act_on_first
from clary.control.store.damage import JobUnreadable
from clary.control.tuning.completion import next_definition
from clary.control.tuning.configurations import Curves, configurations_of, promoted, rungs_of
from clary.control.tuning.search import Observation, Question, propose
from clary.control.tuning.trial_requests import is_kept_unasked, trial_name, trial_requests
from clary.control.tuning.tuning_job import Trial, TuningJob
from clary.control.tuning.tuning_request import Definition, TuningRequest
from clary.control.tuning.validation import without_effect
from clary.control.tuning.warm_start import observations_of


class TrialStarter:
    """Starts trials; caches the trials of the parents of a warm start.

    Args:
        services: parts of the service.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._parents: dict[str, tuple[Observation, ...]] = {}  # tuning job -> trials of its parents

    def forget(self, name: str) -> None:
        """Forget an ended tuning job."""
        self._parents.pop(name, None)

    async def start(self, job: TuningJob, trials: Sequence[Trial], curves: Curves) -> Trial:
        """Propose and store the next trial with its training job; return it.

        Args:
            job: a tuning job in progress.
            trials: all trials of the tuning job.
            curves: values that running training jobs of the tuning job have reported.
        Raises: TrialRefused if the store has changed since the caller read it; WireError if the training job cannot be
        created.
        """
        request = TuningRequest(job.request)
        definition = next_definition(request, trials)
        number = await self._next_number(job, trials)
        configurations = configurations_of(trials, definition.name)
        observations = list(await self._parent_observations(job, definition))
        observations += [one.observed(curves) for one in configurations]
        question = question_of(job, definition, observations, number=number)
        rungs = rungs_of(request, definition)
        going_on = await asyncio.to_thread(promoted, configurations, question, rungs)
        if going_on is not None:
            parameters: Mapping[str, str] = going_on.first.parameters
        else:
            parameters = await asyncio.to_thread(propose, question)
        first = None if going_on is None else going_on.first
        name = trial_name(job, number)
        stored_tags = await self._services.store.get_tags(job.arn)  # includes tags that were added later
        tags = [{"Key": key, "Value": value} for key, value in stored_tags.items()]
        continues = "" if first is None else first.job_name
        requests = trial_requests(definition, parameters, name, continues=continues)
        call = Call(
            services=self._services,
            params={},
            region=job.arn.split(":")[3],
            access_key_id="",
            request_id=name,
            unknown_members=job.unknown_members,
        )
        trial = Trial(
            tuning_job=job.name,
            number=number,
            job_name=name,
            job_arn=call.arn(f"training-job/{name}"),
            definition=definition.name,
            parameters=parameters,
            created_at=job.now(self._services.clock),
            continues=0 if first is None else first.number,
        )
        notes = [f"It is trial {number} of tuning job {job.name}.", *without_effect(request)]
        if first is not None:
            notes.insert(1, f"It goes on from the checkpoints of trial {first.number}, {first.job_name}.")
        store = partial(
            store_training_job,
            trial=trial,
            tuning_job_arn=job.arn,
            notes=tuple(notes),
            is_kept_unasked=is_kept_unasked(definition),
        )
        await act_on_first(call, ({**request, "Tags": tags} for request in requests), store)
        return trial

    async def _next_number(self, job: TuningJob, trials: Sequence[Trial]) -> int:
        """Return the next trial's number; skip numbers of training jobs that exist without a readable trial record."""
        number = 1 + max((trial.number for trial in trials), default=0)
        try:
            while await self._services.find_job(trial_name(job, number)) is not None:
                number += 1
        except JobUnreadable:
            number += 1
        return number

    async def _parent_observations(self, job: TuningJob, definition: Definition) -> tuple[Observation, ...]:
        """Return the trials of the parents of a warm start; a deleted parent counts as empty.

        A grid search gets no trials of parents: each of its points has its own trial.
        """
        if TuningRequest(job.request).strategy == "Grid":
            return ()
        if job.name not in self._parents:
            found: list[Observation] = []
            records = self._services.store.tuning
            for name in TuningRequest(job.request).parents:
                parent = await records.get(name)
                if parent is not None:
                    found += observations_of(await records.trials(name), definition, parent)
            self._parents[job.name] = tuple(found)
        return self._parents[job.name]


def question_of(
    job: TuningJob, definition: Definition, observations: Sequence[Observation], *, number: int
) -> Question:
    """Return the input of the search for the next trial.

    Args:
        job: record of the tuning job.
        definition: definition of the training job.
        observations: trials of this definition, trials of parents first.
        number: number of the trial to propose.
    """
    return Question(
        strategy=TuningRequest(job.request).strategy,
        space=definition.space,
        is_maximized=definition.objective.is_maximized,
        observations=tuple(observations),
        seed=job.seed,
        number=number,
    )
