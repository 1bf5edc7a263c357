"""Receives values of trainings: findings (metrics and pictures that agents read from files), and programs' own status.

Where: `server.route_table` calls this; the database stores the values (`store.training_records`), the hub stores the
last values in the job's record.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from clary.base.clock import Clock
from clary.base.errors import WireError
from clary.contract.training_values import (
    MAX_DATA_CHARACTERS,
    MAX_FINDINGS,
    MAX_NAME_CHARACTERS,
    Finding,
    FindingKind,
    TrainingBatch,
    TrainingProgress,
    TrainingReceipt,
    status_token,
)
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import FinalMetric, TrainingJob
from clary.control.jobs.training_status import read_status
from clary.control.reconcile.gateways.training_pictures import picture_of
from clary.control.reconcile.hub import MAX_FINAL_METRICS, JobHub
from clary.control.store.errors import JobNotFound
from clary.control.store.training_pictures import Picture
from clary.control.tuning.tuning_request import OBJECTIVE_KEY

MAX_FILE_CHARACTERS = 4096
STATUS_BURST = 20.0  # burst of requests of one host's program
STATUS_PER_S = 1.0  # average rate of requests; transformers sends one every five seconds
MAX_SPOKEN_NAMES = 1_000  # metric names of one host's program; further names are dropped
MAX_STATUS_BYTES = 64 * 1024
_MOST = 2**63  # above the largest BIGINT
_MOST_MS = 4_102_444_800_000  # start of the year 2100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TrainingSink(Protocol):
    """The part of the store that the gateway uses."""

    async def append(
        self,
        job_name: str,
        attempt: int,
        host: str,
        *,
        first: int,
        findings: Sequence[FinalMetric | Picture],
        progress: TrainingProgress | None = None,
        num_dropped: int = 0,
    ) -> tuple[int, int]:
        """Store findings exactly once by number; raises JobNotFound.

        Args: as `TrainingRecords.append`.
        """


class MetricSink(Protocol):
    """The part of the metric store that the gateway uses."""

    async def add_metrics(self, job_name: str, values: Sequence[FinalMetric]) -> None:
        """Store metric values; raises JobNotFound."""


@dataclass
class _Speaker:
    """A program that reports its own progress."""

    left: float = STATUS_BURST
    at_s: float = 0.0
    progress: TrainingProgress | None = None
    values: dict[str, float] = field(default_factory=dict)  # metric -> last value sent


class TrainingGateway:
    """Answers agents and programs."""

    def __init__(self, hub: JobHub, training: TrainingSink, metrics: MetricSink, clock: Clock) -> None:
        self._hub = hub
        self._training = training
        self._metrics = metrics
        self._clock = clock
        self._speakers: dict[tuple[str, int, str], _Speaker] = {}

    async def append(self, job: TrainingJob, host: str, batch: TrainingBatch) -> TrainingReceipt:
        """Store findings of a host that are not stored yet.

        Raises: WireError 400 for an invalid batch, 410 when the job was deleted.
        """
        if (wrong := complaint(batch)) is not None:
            raise WireError("ValidationException", f"values of {host}'s training: {wrong}")
        findings = [_stored(finding) for finding in batch.findings]
        try:
            end, _ = await self._training.append(
                job.name,
                job.attempt,
                host,
                first=batch.first,
                findings=findings,
                progress=batch.progress,
                num_dropped=batch.num_dropped,
            )
            # Findings stored before are recorded again: a service killed after it had stored them may not have recorded
            # their last values.
            values = [finding for finding in findings if isinstance(finding, FinalMetric)]
            if values:
                await self._hub.record_metrics(job.name, _newest(values), most=_room(job))
        except JobNotFound as error:
            raise _over(job) from error
        return TrainingReceipt(next=end)

    def authorize_status(self, name: str, attempt: int, host: str, token: str) -> TrainingJob:
        """Return the live job whose program sends its status. Raises: WireError 403, 410.

        Args:
            name: name of the job.
            attempt: attempt of the program.
            host: algo-N, where it runs.
            token: bearer token that the program sent.
        """
        job = self._hub.live_job(name)
        if job is None or job.plan is None or job.attempt != attempt or host not in job.hosts:
            raise WireError("AttemptOver", f"attempt {attempt} of {name} does not run on {host}", http_status=410)
        expected = status_token(str(job.plan["agent_token"]), job=name, attempt=attempt, host=host)
        if not hmac.compare_digest(expected.encode(), token.encode("utf-8", "backslashreplace")):
            raise WireError("AccessDenied", f"the token does not open the status of {name}", http_status=403)
        return job

    async def take_status(self, job: TrainingJob, host: str, document: Any) -> None:
        """Store a program's own status. Raises: WireError 400, 429 for a program that sends too often, 410.

        Args:
            job: the job returned by `authorize_status`.
            host: where the program runs; each host has its own budget of requests.
            document: the body: {"trainerStatus": {...}}.
        """
        speaker = self._speaker(job, host)
        now = self._clock.now()
        status = read_status(document, speaker.progress, at_ms=int(now.timestamp() * 1000))
        if status is None:
            raise WireError("ValidationException", 'expected {"trainerStatus": {...}}')
        # The callback of transformers repeats the values of its last log with each step that it reports.
        new = {name: value for name, value in status.metrics.items() if not _is_same(speaker.values.get(name), value)}
        room = MAX_SPOKEN_NAMES - len(speaker.values)  # limits a program that keeps sending new names
        unknown = [name for name in new if name not in speaker.values]
        for name in unknown[max(0, room) :]:
            del new[name]
        values = [FinalMetric(name=name, value=value, at=now, step=status.step) for name, value in new.items()]
        try:
            if status.progress is not None:
                await self._training.append(job.name, job.attempt, host, first=0, findings=(), progress=status.progress)
                speaker.progress = status.progress
            if values:
                await self._metrics.add_metrics(job.name, values)
                speaker.values |= new
                await self._hub.record_metrics(job.name, _newest(values), most=_room(job))
        except JobNotFound as error:
            raise _over(job) from error

    def _speaker(self, job: TrainingJob, host: str) -> _Speaker:
        now_s = self._clock.monotonic()
        key = (job.name, job.attempt, host)
        if key not in self._speakers:
            live = {name: one.attempt for name, _, _ in self._speakers if (one := self._hub.live_job(name)) is not None}
            self._speakers = {known: one for known, one in self._speakers.items() if live.get(known[0]) == known[1]}
            self._speakers[key] = _Speaker(at_s=now_s)
        speaker = self._speakers[key]
        speaker.left = min(STATUS_BURST, speaker.left + (now_s - speaker.at_s) * STATUS_PER_S)
        speaker.at_s = now_s
        if speaker.left < 1:
            raise WireError(
                "ThrottlingException", f"more than {STATUS_PER_S:g} status reports per second", http_status=429
            )
        speaker.left -= 1
        return speaker


def complaint(batch: TrainingBatch) -> str | None:
    """Return the reason why a batch is invalid; None if it is valid. Pure."""
    if not 0 <= batch.first < _MOST or not 0 <= batch.num_dropped < _MOST:
        return f"findings count from 0, got {batch.first}, and {batch.num_dropped} dropped"
    if len(batch.findings) > MAX_FINDINGS:
        return f"a batch has at most {MAX_FINDINGS} findings, got {len(batch.findings)}"
    if sum(len(finding.data) for finding in batch.findings) > MAX_DATA_CHARACTERS + MAX_DATA_CHARACTERS // 2:
        return f"a batch has at most {MAX_DATA_CHARACTERS} characters of pictures"
    if batch.progress is not None and not _is_progress(batch.progress):
        return f"this is no progress: {batch.progress}"
    return next((wrong for finding in batch.findings if (wrong := _complaint(finding)) is not None), None)


def _complaint(finding: Finding) -> str | None:
    if not _is_text(finding.name, MAX_NAME_CHARACTERS) or not finding.name:
        return f"this is no name of a metric: {finding.name[:80]!r}"
    if not _is_text(finding.file, MAX_FILE_CHARACTERS):
        return f"this is no path: {finding.file[:80]!r}"
    if not 0 <= finding.at_ms < _MOST_MS:
        return f"{finding.name!r} has the time {finding.at_ms}"
    numbers = (finding.step or 0, finding.offset, finding.size_bytes)
    if any(not -_MOST <= number < _MOST for number in numbers):
        return f"{finding.name!r} has a number that nothing counts to: {numbers}"
    return None


def _is_progress(progress: TrainingProgress) -> bool:
    counts = (progress.epoch, progress.max_epoch, progress.step_in_epoch, progress.steps_per_epoch)
    numbers = (progress.done, progress.total or 0.0, progress.eta_s or 0.0, *(count or 0 for count in counts))
    is_counted = all(math.isfinite(number) and -_MOST < number < _MOST for number in numbers)
    return is_counted and 0 <= progress.at_ms < _MOST_MS and len(progress.unit + progress.source) <= MAX_NAME_CHARACTERS


def _is_text(text: str, most: int) -> bool:
    if len(text) > most or "\0" in text:
        return False
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _stored(finding: Finding) -> FinalMetric | Picture:
    at = _EPOCH + timedelta(milliseconds=finding.at_ms)
    if finding.kind is FindingKind.SCALAR:
        value = math.nan if finding.value is None else finding.value
        return FinalMetric(name=finding.name, value=value, at=at, step=finding.step)
    return picture_of(finding, at)


def _is_same(known: float | None, value: float) -> bool:
    return known == value or (known is not None and math.isnan(known) and math.isnan(value))


def _newest(values: Sequence[FinalMetric]) -> list[FinalMetric]:
    """Return the latest value of each name; NaN does not count."""
    newest: dict[str, FinalMetric] = {}
    for value in values:
        if math.isnan(value.value):
            continue
        known = newest.get(value.name)
        if known is None or value.at >= known.at:
            newest[value.name] = value
    return list(newest.values())


def _room(job: TrainingJob) -> int:
    """Return how many final metrics a job may hold for now; metrics that its request defines have reserved places.

    Of the many metrics that an image defines only the objective of a trial has one.
    """
    request, names = JobRequest(job.request), {metric.name for metric in job.final_metrics}
    missing = [item for item in request.metric_definitions if item.name not in names]
    if not request.has_own_metrics:
        missing = [item for item in missing if item.name == request.hyperparameters.get(OBJECTIVE_KEY)]
    return max(0, MAX_FINAL_METRICS - len(missing))


def _over(job: TrainingJob) -> WireError:
    return WireError("AttemptOver", f"attempt {job.attempt} of {job.name} is over", http_status=410)
