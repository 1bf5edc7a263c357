"""Evaluates jobs' profiler rules while jobs run, and finally at their end; stores the reports.

Where: the server runs one task of this. It listens to the hub for jobs with such rules; its findings become events
`RuleEvaluationChanged`. Rules are judged on a thread (`control.profiling`, pure), one job at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http import HTTPStatus
from typing import Protocol

from clary.base.clock import Clock
from clary.base.errors import ClaryError, ObjectStoreError
from clary.contract.agent_protocol import HostPhase
from clary.contract.statuses import SecondaryStatus
from clary.control.jobs import events
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.rules.rule_evaluations import (
    RuleEvaluation,
    RuleKind,
    RuleStatus,
    configurations_of,
    evaluation_of,
)
from clary.control.jobs.training_job import TrainingJob
from clary.control.profiling.configured import ConfiguredRule, configured_rules, object_prefix
from clary.control.profiling.report.facts import RuleResult
from clary.control.profiling.report.page import PAGE_NAME, files
from clary.control.profiling.rule import ProfilerRule, Verdict
from clary.control.reconcile.hub import JobHub
from clary.control.reconcile.job_measurements import (
    JobMeasurements,
    SeriesReader,
    look_at,
    read_measurements,
    report_facts,
)
from clary.control.store.errors import JobNotFound
from clary.control.store.job_queries import MAX_RESULTS, JobPage, JobQuery

PASS_INTERVAL_S = 1.0
LAST_ROWS = timedelta(seconds=3)  # wait for rows that have not arrived yet when a job becomes terminal
# the search for jobs that ended while no service was running goes back this far
LOOK_BACK = timedelta(hours=1)
MOST_PAGES = 20  # pages of such jobs
MOST_LOAD = 25  # shortest time to the next evaluation, as a multiple of the duration of the last one
MOST_TRIES = 5  # consecutive evaluations that may fail, for instance while the database does not answer
DISABLED = "profiling is switched off (ProfilerConfig.DisableProfiler)"
NEVER_RAN = "nothing was measured: the job's program never ran"
NOT_MEASURED = "nothing was measured while the job's program ran: it was over too soon, or hosts measure nothing here"

log = logging.getLogger(__name__)


class Answer(Protocol):
    """An answer of the object store."""

    @property
    def status(self) -> int:
        """HTTP status."""


class ObjectWriter(Protocol):
    """The part of an object store's client that stores small objects."""

    async def request(self, method: str, bucket: str, *, key: str = "", body: bytes = b"") -> Answer:
        """Send one request; raises ObjectStoreError without an answer.

        Args:
            method: HTTP method.
            bucket: name of the bucket.
            key: key of the object; empty for the bucket itself.
            body: whole content of the object, held in memory.
        """


class JobReader(Protocol):
    """The part of the job store that is used here."""

    async def get_job(self, name: str) -> TrainingJob | None:
        """Read a job."""

    async def list_jobs(self, query: JobQuery) -> JobPage:
        """Return a page of jobs."""


@dataclass(kw_only=True)
class _Watch:
    """State of a watched job: times of its next evaluations, rules that have fired, consecutive failed evaluations."""

    due_s: dict[str, float] = field(default_factory=dict)  # rule -> monotonic time of its next evaluation
    fired: dict[tuple[str, str], str] = field(default_factory=dict)  # (configured rule, rule) -> its finding
    num_tries: int = 0


class ProfilerRules:
    """Evaluates the rules of jobs that have profiler rules.

    Args:
        hub: the hub of jobs.
        jobs: reads ended jobs.
        series: measurements of hosts.
        objects: stores the reports.
        clock: measures intervals and dates records.
    """

    def __init__(
        self, hub: JobHub, jobs: JobReader, series: SeriesReader, objects: ObjectWriter, *, clock: Clock
    ) -> None:
        self._hub = hub
        self._jobs = jobs
        self._series = series
        self._objects = objects
        self._clock = clock
        self._watched: dict[str, _Watch] = {}
        self._has_watched = asyncio.Event()  # set while a job is watched
        hub.listen(lambda _, job: self.notice(job))

    def notice(self, job: TrainingJob) -> None:
        """Watch a job that has rules without a verdict."""
        if job.name not in self._watched and _awaits_verdicts(job):
            self._watched[job.name] = _Watch()
            self._has_watched.set()

    async def run(self, *, interval_s: float = PASS_INTERVAL_S) -> None:
        """Evaluate the rules of watched jobs until cancelled; sleep while no job is watched."""
        await self.take_up()
        while True:
            await self.make_pass()
            if not self._watched:
                self._has_watched.clear()
                await self._has_watched.wait()
            else:
                await asyncio.sleep(interval_s)

    async def take_up(self) -> None:
        """Watch the jobs of the hub, and ended jobs that an earlier service has left without final verdicts."""
        for job in (*self._hub.active_jobs(), *self._hub.waiting_jobs().values()):
            self.notice(job)
        try:
            query = JobQuery(modified_after=self._clock.now() - LOOK_BACK, descending=True)
            for _ in range(MOST_PAGES):
                page = await self._jobs.list_jobs(query)
                for summary in page.summaries:
                    ended = await self._jobs.get_job(summary.name)
                    if ended is not None:
                        self.notice(ended)
                if page.next_token is None:
                    return
                query = replace(query, next_token=page.next_token)
            log.warning("profiler rules are judged only for the %d jobs that changed last", MOST_PAGES * MAX_RESULTS)
        except ClaryError as error:
            log.warning("profiler rules of jobs that ended earlier are not judged: %s", error.message)

    async def make_pass(self) -> None:
        """Evaluate the due rules of every watched job once."""
        for name, watch in list(self._watched.items()):
            try:
                job = self._hub.live_job(name) or await self._jobs.get_job(name)
                if job is not None and not job.hosts and not job.is_terminal:
                    continue  # skipped without a query: thousands of jobs may wait
                if job is None or await self._look(job, watch):
                    self._watched.pop(name, None)
                watch.num_tries = 0
            except JobNotFound:  # the job was deleted meanwhile
                self._watched.pop(name, None)
            except Exception:  # boundary: one job's failure must not stop the rules of others
                log.exception("profiler rules of %s: this look failed", name)
                watch.num_tries += 1
                if watch.num_tries >= MOST_TRIES:
                    self._watched.pop(name, None)
                    log.error("profiler rules of %s are not judged any more", name)

    async def _look(self, job: TrainingJob, watch: _Watch) -> bool:
        """Evaluate the due rules of a job; return whether all have their final verdict."""
        rules = configured_rules(configurations_of(job, RuleKind.PROFILER))
        if job.is_terminal:
            return await self._judge_for_good(job, rules, watch)
        is_off = JobRequest(job.request).is_profiler_disabled
        for rule in rules:
            await self._tell_state(job, rule, is_off=is_off)
        now_s = self._clock.monotonic()
        usable = [] if is_off else [rule for rule in rules if not rule.error]
        if not any(record.facts.phase is HostPhase.RUNNING for record in job.hosts.values()):
            return False
        due = [rule for rule in usable if watch.due_s.setdefault(rule.name, now_s + rule.interval_s) <= now_s]
        if not due:
            return False
        measured = await look_at(self._series, job, now=self._clock.now())
        # reduces how often a large job on a busy machine is evaluated
        rest_s = MOST_LOAD * (self._clock.monotonic() - now_s)
        for rule in due:
            watch.due_s[rule.name] = now_s + max(rule.interval_s, rest_s)
            known = {key for key in watch.fired if key[0] == rule.name}
            results = await self._results(rule, measured, watch)
            if {key for key in watch.fired if key[0] == rule.name} != known:
                await self._tell(job, rule, RuleStatus.ISSUES_FOUND, _found(results))
        return False

    async def _judge_for_good(self, job: TrainingJob, rules: Sequence[ConfiguredRule], watch: _Watch) -> bool:
        """Give the final verdicts on an ended job once its last rows have arrived; return whether they were given."""
        ended_at = job.training_ended_at or job.modified_at
        if not job.is_released and self._hub.now_of(job) - ended_at < LAST_ROWS:
            return False
        is_off = JobRequest(job.request).is_profiler_disabled
        measured: JobMeasurements | None = None
        for rule in rules:
            if rule.error or is_off:
                await self._tell_state(job, rule, is_off=is_off)
                continue
            if measured is None:
                measured = await read_measurements(self._series, job, now=self._clock.now())
            if measured.measurements.began_ms is None:
                has_run = any(row.status is SecondaryStatus.TRAINING for row in job.transitions)
                await self._tell(job, rule, RuleStatus.STOPPED, NOT_MEASURED if has_run else NEVER_RAN)
                continue
            results = await self._results(rule, measured, watch)
            words = _found(results)
            if rule.is_report:
                words = f"{await self._store_report(job, rule, measured, results)}. {words}"
            fires = any(result.fires for result in results)
            await self._tell(job, rule, RuleStatus.ISSUES_FOUND if fires else RuleStatus.NO_ISSUES_FOUND, words)
        return True

    async def _results(self, rule: ConfiguredRule, measured: JobMeasurements, watch: _Watch) -> list[RuleResult]:
        """Evaluate a configured rule on a thread, and record in `watch` the rules that fire."""
        verdicts = await asyncio.to_thread(_judged, rule, measured)
        results = []
        for one, verdict in verdicts:
            key = (rule.name, one.name())
            earlier = "" if verdict.has_issue else watch.fired.get(key, "")
            if verdict.has_issue:
                watch.fired[key] = verdict.detail
            results.append(RuleResult(rule=one, verdict=verdict, earlier=earlier))
        return results

    async def _store_report(
        self, job: TrainingJob, rule: ConfiguredRule, measured: JobMeasurements, results: Sequence[RuleResult]
    ) -> str:
        """Store a report; return a text with its S3 URI or the error."""
        output_path = rule.s3_output_path or JobRequest(job.request).output.s3_output_path
        bucket, prefix = object_prefix(output_path, job.name, rule.name)
        facts = report_facts(job, measured, now=self._clock.now())
        pages = await asyncio.to_thread(files, facts, measured.measurements, results)
        try:
            for name, content in pages.items():
                answer = await self._objects.request("PUT", bucket, key=prefix + name, body=content)
                if answer.status != HTTPStatus.OK:
                    raise ObjectStoreError(
                        f"the object store answered {answer.status} for s3://{bucket}/{prefix}{name}"
                    )
        except ObjectStoreError as error:
            log.warning("job %s: the report of %s is not stored: %s", job.name, rule.name, error.message)
            return f"the report could not be stored: {error.message}"
        return f"report: s3://{bucket}/{prefix}{PAGE_NAME}"

    async def _tell_state(self, job: TrainingJob, rule: ConfiguredRule, *, is_off: bool) -> None:
        """Record that a rule is not evaluated, or is evaluated again."""
        known = evaluation_of(job, RuleKind.PROFILER, rule.name)
        if rule.error:
            if known is None or known.status is not RuleStatus.ERROR:
                await self._tell(job, rule, RuleStatus.ERROR, rule.error)
        elif is_off:
            if known is None or known.status is RuleStatus.IN_PROGRESS:
                await self._tell(job, rule, RuleStatus.STOPPED, DISABLED)
        elif known is not None and known.status in (RuleStatus.STOPPED, RuleStatus.ERROR):
            await self._tell(job, rule, RuleStatus.IN_PROGRESS, "")

    async def _tell(self, job: TrainingJob, rule: ConfiguredRule, status: RuleStatus, details: str) -> None:
        evaluation = RuleEvaluation(
            kind=RuleKind.PROFILER,
            name=rule.name,
            status=status,
            details=details,
            changed_at=self._clock.now(),
        )
        await self._hub.apply(job.name, events.RuleEvaluationChanged(evaluation=evaluation))


def _awaits_verdicts(job: TrainingJob) -> bool:
    """Whether a job has profiler rules without a final verdict."""
    named = [config["RuleConfigurationName"] for config in configurations_of(job, RuleKind.PROFILER)]
    if not job.is_terminal:
        return bool(named)
    told = (evaluation_of(job, RuleKind.PROFILER, name) for name in named)
    return any(known is None or known.status is RuleStatus.IN_PROGRESS for known in told)


def _judged(rule: ConfiguredRule, measured: JobMeasurements) -> list[tuple[ProfilerRule, Verdict]]:
    return [(one, one.judge(measured.measurements)) for one in rule.rules]


def _found(results: Sequence[RuleResult]) -> str:
    """Return the findings of rules as one text, with the rules' names if there are several."""
    if len(results) == 1:
        return results[0].earlier or results[0].verdict.detail
    firing = [f"{result.rule.name()}: {result.earlier or result.verdict.detail}" for result in results if result.fires]
    num_judged = sum(result.verdict.was_judged for result in results)
    return "; ".join(firing) or f"no issue in {num_judged} of {len(results)} rules, the others had too little to judge"
