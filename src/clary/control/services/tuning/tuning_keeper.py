"""The loop that runs tuning jobs: starts their training jobs, ends some early, stores each outcome.

Where: one task of the service. Training jobs are created by the same function as clients' training jobs. All state is
in the store: a trial is stored with its training job, so after a kill at any moment the next service continues with the
next number. `control.tuning` decides, `trial_starts` starts trials, `trial_outcomes` reads the outcomes of ended
trials.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from clary.base.clock import ClockAnchor
from clary.base.errors import WireError
from clary.contract.statuses import TrainingJobStatus
from clary.control.jobs import warm_pools
from clary.control.jobs.training_job import TrainingJob
from clary.control.services.call import Services
from clary.control.services.job_acts import stop_job
from clary.control.services.tuning.trial_outcomes import curve_of, outcome_of
from clary.control.services.tuning.trial_starts import TrialStarter, question_of
from clary.control.store.damage import JobUnreadable
from clary.control.store.tracking.tuning_records import TrialRefused
from clary.control.tuning import early_stopping
from clary.control.tuning.completion import Decision, decide, final_end
from clary.control.tuning.configurations import (
    HYPERBAND,
    configurations_of,
    place_of,
    rungs_of,
    why_ended,
)
from clary.control.tuning.search import is_pruned
from clary.control.tuning.trial_requests import keep_alive_of, trial_name
from clary.control.tuning.tuning_job import Trial, TrialOutcome, TuningJob, TuningStatus
from clary.control.tuning.tuning_request import Definition, TuningRequest

TICK_S = 1.0  # between a pass over all tuning jobs in progress and the next one, whatever changes meanwhile

log = logging.getLogger(__name__)


class TuningKeeper:
    """Runs tuning jobs.

    Args:
        services: parts of the service.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._has_begun = False  # whether the tuning jobs of an earlier service are loaded
        self._active: set[str] = set()  # tuning jobs in progress, by name
        self._due: set[str] = set()  # tuning jobs to handle in the next pass
        self._judged: set[str] = set()  # tuning jobs that may stop a trial by its values
        self._changed = asyncio.Event()
        self._starter = TrialStarter(services)
        self._curves: dict[str, tuple[float, ...]] = {}  # running training job -> values at the last judgement
        services.hub.listen(self._note)
        services.tuning.connect(self.wake)

    def wake(self, name: str) -> None:
        """Handle a tuning job now, because it was created or has to stop."""
        self._active.add(name)
        self._due.add(name)
        self._changed.set()

    def wake_all(self) -> None:
        """Mark every tuning job in progress as due, because time has passed."""
        self._due |= self._active

    async def run(self) -> None:
        """Run tuning jobs until cancelled.

        Time limits and looks that failed wait for no change of their own tuning job, and the changes of others must not
        delay them; so all tuning jobs are handled at every tick.
        """
        loop = asyncio.get_running_loop()
        tick_at_s = loop.time()
        while True:
            if is_tick := loop.time() >= tick_at_s:
                self.wake_all()
            await self.look_at_due()
            if is_tick:
                tick_at_s = loop.time() + TICK_S  # from its end: a long pass is not followed by the next one at once
            try:
                async with asyncio.timeout_at(tick_at_s if self._active or not self._has_begun else None):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def look_at_due(self) -> None:
        """Handle the due tuning jobs; in the first pass, all unfinished tuning jobs."""
        try:
            if not self._has_begun:
                for job in await self._services.store.tuning.unfinished():
                    if job.anchor is None or not job.anchor.holds:  # the machine was rebooted
                        await self._services.store.tuning.change(job.name, self._anchored)
                    self.wake(job.name)
                self._has_begun = True
        except Exception:  # boundary: the database may be unavailable for a while
            log.exception("tuning jobs could not be read; the next look tries again")
        self._changed.clear()
        due, self._due = sorted(self._due & self._active), set()
        for name in due:
            try:
                await self._look_at(name)
            except Exception:  # boundary: one tuning job's failure must not affect the others
                log.exception("tuning job %s: this look failed; the next one tries again", name)

    def _anchored(self, job: TuningJob) -> TuningJob:
        return replace(job, anchor=ClockAnchor.lay(self._services.clock, not_before=job.modified_at))

    def _note(self, before: TrainingJob | None, job: TrainingJob) -> None:
        """Mark a tuning job as due if one of its training jobs has ended, or reported a value for early stopping."""
        if not job.tuning_job_arn:
            return
        name = job.tuning_job_arn.rpartition("/")[2]
        has_ended = job.is_terminal and (before is None or not before.is_terminal)
        has_told = name in self._judged and (before is None or before.final_metrics != job.final_metrics)
        if name in self._active and (has_ended or has_told):
            self._due.add(name)
            self._changed.set()

    async def _look_at(self, name: str) -> None:
        store = self._services.store.tuning
        job = await store.get(name)
        if job is None or job.is_terminal:
            self._forget(name)
            return
        trials = [await self._with_outcome(job, trial) for trial in await store.trials(name)]
        if job.ends_as is None:
            decision = decide(job, trials, now=job.now(self._services.clock))
            if decision.ends_as is not None:
                job = await self._begin_end(job, decision)
            else:
                await self._stop_hopeless(job, trials)
                await self._start_trials(job, trials, decision.num_starts)
        if job.ends_as is not None:
            await self._end(job, trials)

    async def _with_outcome(self, job: TuningJob, trial: Trial) -> Trial:
        """Return a trial; if its training job has ended, store its outcome and return the trial with it."""
        if trial.is_over:
            return trial
        services = self._services
        reason = "its training job was deleted"
        try:
            training = await services.find_job(trial.job_name)
        except JobUnreadable as error:
            training, reason = None, f"the record of its training job is lost: {error.message}"
        if training is not None and not training.is_terminal:
            return trial
        if training is None:
            outcome = TrialOutcome(status=TrainingJobStatus.STOPPED, value=None, failure_reason=reason)
        else:
            outcome = await outcome_of(services, job, trial, training)
        self._curves.pop(trial.job_name, None)
        ended = replace(trial, outcome=outcome)
        await services.store.tuning.put_trial(ended)
        return ended

    async def _begin_end(self, job: TuningJob, decision: Decision) -> TuningJob:
        now = job.now(self._services.clock)
        log.info("tuning job %s ends: %s", job.name, decision.reason)

        def change(current: TuningJob) -> TuningJob:
            if current.ends_as is not None:
                return current
            return replace(
                current,
                ends_as=decision.ends_as,
                stops_running=decision.stops_running,
                end_reason=decision.reason,
                converged_at=now if decision.has_converged else None,
                modified_at=now,
            )

        return await self._services.store.tuning.change(job.name, change)

    async def _end(self, job: TuningJob, trials: Sequence[Trial]) -> None:
        """End running trials if the kind of end requires it; once all have ended, release hosts and set the status."""
        running = [trial for trial in trials if not trial.is_over]
        if job.stops_running:
            for trial in running:
                await self._stop(trial, job.end_reason)
        if running:
            return
        await self._give_hosts_back(job, trials)
        now = job.now(self._services.clock)

        def change(current: TuningJob) -> TuningJob:
            if current.is_terminal or current.ends_as is None:
                return current
            status, reason = final_end(current, trials)
            return replace(current, status=status, end_reason=reason, ended_at=now, modified_at=now)

        ended = await self._services.store.tuning.change(job.name, change)
        log.info("tuning job %s is %s: %s", job.name, ended.status.value, ended.end_reason)
        self._forget(job.name)

    def _forget(self, name: str) -> None:
        self._active.discard(name)
        self._judged.discard(name)
        self._starter.forget(name)

    async def _give_hosts_back(self, job: TuningJob, trials: Sequence[Trial]) -> None:
        """Release the hosts that wait for a next trial, unless the request itself has a keep-alive period.

        This ends the hosts' keep-alive period; then the reconciler, which knows whether another job has just taken the
        hosts over, ends the hosts.
        """
        request = TuningRequest(job.request)
        waiting = {one.name for one in request.definitions if keep_alive_of(one) is not None}
        for trial in trials:
            training = self._services.hub.live_job(trial.job_name)
            if training is None or trial.definition in waiting or training.tuning_job_arn != job.arn:
                continue
            if warm_pools.is_available(training):
                await self._services.hub.update(training.name, _without_keep_alive)

    async def _stop_hopeless(self, job: TuningJob, trials: Sequence[Trial]) -> None:
        """Stop trials that early stopping or Hyperband finds hopeless."""
        request = TuningRequest(job.request)
        is_hyperband = request.strategy == "Hyperband"
        if not is_hyperband and not request.stops_early:
            return
        self._judged.add(job.name)
        for trial in trials:
            if trial.is_over:
                continue
            if trial.stop_reason:  # an earlier service may have been killed before it stopped the training job
                await self._stop(trial, trial.stop_reason)
                continue
            training = self._services.hub.live_job(trial.job_name)
            if training is None:
                continue
            definition = request.definition(trial.definition)
            curve = await curve_of(self._services, training, definition.objective.metric, is_live=True)
            if len(curve) <= len(self._curves.get(trial.job_name, ())):
                continue  # no new value since the last judgement
            if why := await self._why_hopeless(job, definition, trial, trials, curve):
                await self._stop(trial, why)
            self._curves[trial.job_name] = curve

    async def _why_hopeless(
        self, job: TuningJob, definition: Definition, trial: Trial, trials: Sequence[Trial], curve: tuple[float, ...]
    ) -> str:
        same = [one for one in trials if one.definition == trial.definition]
        request = TuningRequest(job.request)
        if request.strategy != "Hyperband":
            ended = [one.outcome.curve for one in same if one.outcome is not None and one.outcome.value is not None]
            return early_stopping.why_stop(curve, ended, definition.objective)
        configurations = configurations_of(same, trial.definition)
        place = place_of(configurations, trial)
        observations = [one.observed({**self._curves, trial.job_name: curve}) for one in configurations]
        num_values, metric = len(observations[place].curve), definition.objective.metric
        _, most = request.hyperband_resources
        if most is not None and num_values > most:
            return f"{HYPERBAND}it has reported {num_values} values of {metric}, and MaxResource is {most}"
        question = question_of(job, definition, observations, number=trial.number)
        rungs = rungs_of(request, definition)
        is_hopeless = await asyncio.to_thread(is_pruned, question, place, rungs)
        return why_ended(num_values, rungs, metric) if is_hopeless else ""

    async def _stop(self, trial: Trial, why: str) -> None:
        training = self._services.hub.live_job(trial.job_name)
        if training is None or training.is_terminal or training.end_cause is not None:
            return
        if not trial.stop_reason:  # stored before the stop, so that the reason survives a kill in between
            await self._services.store.tuning.put_trial(replace(trial, stop_reason=why))
        log.info("training job %s: %s", trial.job_name, why)
        await stop_job(self._services, training)

    async def _start_trials(self, job: TuningJob, trials: Sequence[Trial], number: int) -> None:
        """Start this number of trials, or end the tuning job if a trial cannot be created."""
        known = list(trials)
        for _ in range(number):
            try:
                known.append(await self._starter.start(job, known, self._curves))
            except TrialRefused:
                self.wake(job.name)  # the store has changed during this pass; the next pass reloads it
                return
            except WireError as error:
                name = trial_name(job, 1 + max((trial.number for trial in known), default=0))
                reason = f"training job {name} cannot be created: {error.message}"[:1024]
                await self._begin_end(job, Decision(ends_as=TuningStatus.FAILED, reason=reason))
                self.wake(job.name)
                return


def _without_keep_alive(training: TrainingJob) -> TrainingJob:
    """Return an ended training job without a keep-alive period, so that its hosts wait for no other job."""
    if not warm_pools.is_available(training):
        return training
    resources = {**training.request["ResourceConfig"], "KeepAlivePeriodInSeconds": 0}
    return replace(training, request={**training.request, "ResourceConfig": resources})
