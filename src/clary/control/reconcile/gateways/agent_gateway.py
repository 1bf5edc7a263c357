"""The service's side of the agent protocol.

Where: `server.route_table` calls this module, which sends facts to the hub as events and reads orders from the job
record.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from clary.base.clock import Clock
from clary.base.errors import Fault, WireError
from clary.base.plain import from_plain
from clary.contract.agent_protocol import (
    HEARTBEAT_INTERVAL_S,
    MAX_BATCH_LINES,
    CheckpointFacts,
    HostFacts,
    HostPhase,
    LogBatch,
    LogBlock,
    LogReceipt,
    Order,
    OrderKind,
    Report,
    ReportReceipt,
)
from clary.contract.deep_profiles import HostProfile
from clary.contract.launch_plan import LaunchPlan
from clary.contract.stack_dumps import HostDump
from clary.control.attentive_clock import AttentiveClock
from clary.control.jobs import events, host_metrics
from clary.control.jobs.job_names import host_of_stream
from clary.control.jobs.training_job import FinalMetric, TrainingJob
from clary.control.reconcile.desks.dump_desk import DumpDesk
from clary.control.reconcile.desks.profile_desk import ProfileDesk
from clary.control.reconcile.gateways.log_metrics import lacking, metrics_of
from clary.control.reconcile.hub import JobHub
from clary.control.store.errors import JobNotFound, SequenceGap, StreamNotFound

MAX_METRIC_NAME_BYTES = 4 * 255  # CreateTrainingJob, MetricDefinition.Name: 255 characters
_FAULTS = tuple(fault.value for fault in Fault)


class LogSink(Protocol):
    """The part of the log store that the gateway uses."""

    async def next_sequence(self, stream: str) -> int:
        """Return the sequence that the stream expects next."""

    async def append(self, stream: str, first_sequence: int, blocks: Sequence[LogBlock]) -> int:
        """Store lines exactly once by sequence; return the next sequence.

        Args: as `LogStore.append`.
        """


class MetricSink(Protocol):
    """The part of the metric store that the gateway uses."""

    async def add_metrics(self, job_name: str, values: list[FinalMetric]) -> None:
        """Store metric values."""

    async def query_metrics(self, job_name: str, metric_name: str, start: datetime, end: datetime) -> list[FinalMetric]:
        """Return the values of a metric from `start` to before `end`, oldest first.

        Args: as `Store.query_metrics`.
        """


class ObjectFlush(Protocol):
    """The part of an embedded object store's `FolderFlush` that the gateway uses."""

    async def flush(self, what: str) -> None:
        """Return when all objects that were written before this call are on the disk, or are given up."""

    def begin(self, what: str) -> None:
        """Begin a flush that nobody waits for."""


class AgentGateway:
    """Answers agents; keeps the time of each agent's last request in memory only, which saves a write per request."""

    def __init__(
        self,
        hub: JobHub,
        logs: LogSink,
        metrics: MetricSink,
        dumps: DumpDesk,
        clock: Clock,
        *,
        profiles: ProfileDesk,
        attentive: AttentiveClock | None = None,
        objects: ObjectFlush | None = None,
    ) -> None:
        self._hub = hub
        self._logs = logs
        self._metrics = metrics
        self._dumps = dumps
        self._profiles = profiles
        self._objects = objects  # None for an object store of others, which answers for its disks itself
        self._clock = clock
        self._attentive = attentive or AttentiveClock(clock)
        self._started_s = self._attentive.monotonic()
        # attempt -> host -> time of its last request by the attentive clock
        self._heard_s: dict[tuple[str, int], dict[str, float]] = {}
        self._signs_s: dict[tuple[str, int], dict[str, float]] = {}  # attempt -> host -> time of its last report
        self._open_reports: Counter[tuple[str, int, str]] = Counter()  # (attempt, host) -> reports being stored
        self._log_locks: dict[str, asyncio.Lock] = {}  # stream -> lock
        self._counted: dict[str, int] = {}  # stream -> first line whose metrics are not stored by this service
        self._stored_before: dict[str, int] = {}  # stream -> first line that no earlier service has stored
        self._lags: dict[tuple[str, str], tuple[float, CheckpointFacts]] = {}  # (job, host) -> last stored time, facts
        self._is_closed = False
        self._attentive.add_user(counts=lambda: bool(self._heard_s), begin=self._begin)

    @property
    def served_s(self) -> float:
        """Seconds for which this service has received agents' requests."""
        return self._attentive.monotonic() - self._started_s

    def silent_s(self, job: TrainingJob) -> dict[str, float]:
        """Return host -> seconds since its last request or start, less the time when this service was blocked."""
        now_s = self._attentive.monotonic()
        heard_s = self._heard_s.get((job.name, job.attempt), {})
        return {
            # An agent waits for the answer to a report before it sends the next.
            name: 0.0 if self._open_reports[job.name, job.attempt, name] else now_s - heard_s.get(name, self._started_s)
            for name in job.hosts
        }

    def last_signs(self, job: TrainingJob) -> dict[str, datetime]:
        """Return host -> last time when its reports prove that it worked; hosts without a report are omitted.

        A blocked service may have received a report late, so one interval of reports is subtracted from each time.
        Unlike `silent_s`, this makes no other allowance for blocked time. The times are computed with the present wall
        clock, like the times of hosts' errors, even if the wall clock was changed after the report.
        """
        now, now_s = self._clock.now(), self._clock.monotonic()
        signs_s = self._signs_s.get((job.name, job.attempt), {})
        return {host: now - timedelta(seconds=now_s - at_s + HEARTBEAT_INTERVAL_S) for host, at_s in signs_s.items()}

    async def keep_listening(self) -> None:
        """Detect, until cancelled, when this service is blocked: by its disk, by other programs, by a paused machine.

        The service was starting until this call, so silence counts from this call on.
        """
        await self._attentive.keep_listening()

    def _begin(self) -> None:
        self._started_s = self._attentive.monotonic()
        for heard_s in self._heard_s.values():
            heard_s.update(dict.fromkeys(heard_s, self._started_s))

    def expect(self, job: TrainingJob) -> None:
        """Count silence from now on for hosts whose agents were just started and have not reported yet."""
        heard_s = self._heard_s.setdefault((job.name, job.attempt), {})
        self._attentive.wake()
        for name in job.hosts:
            heard_s.setdefault(name, self._attentive.monotonic())

    def forget(self, job: TrainingJob) -> None:
        """Forget an attempt whose hosts have ended: its signs of life, log positions and checkpoint lags."""
        self._heard_s.pop((job.name, job.attempt), None)
        self._signs_s.pop((job.name, job.attempt), None)
        # Keys of another attempt come back if its report arrives after its `forget` but before its release is recorded.
        for table in (self._heard_s, self._signs_s):
            for name, attempt in list(table):
                live = self._hub.live_job(name)
                if live is None or live.attempt != attempt:
                    del table[name, attempt]
        for stream in job.log_streams:
            self._log_locks.pop(stream, None)
            self._counted.pop(stream, None)
            self._stored_before.pop(stream, None)
        for key in [key for key in self._lags if key[0] == job.name]:
            del self._lags[key]
        self._dumps.want_no_more(job.name)

    def authorize(self, name: str, attempt: int, host: str, token: str) -> TrainingJob:
        """Return the live job to which the agent belongs.

        Args:
            name: name of the job.
            attempt: attempt that the agent serves.
            host: algo-N.
            token: bearer token that the agent sent.
        Raises: WireError 410 when the attempt has ended, 403 when the token is wrong, 404 for an unknown host.
        """
        job = self._hub.live_job(name)
        if job is None or job.plan is None or job.attempt != attempt:
            raise _attempt_over(name, attempt)
        # A header may contain bytes that are not text, which count as a wrong token.
        if not hmac.compare_digest(str(job.plan["agent_token"]).encode(), token.encode("utf-8", "backslashreplace")):
            raise WireError("AccessDenied", f"the token does not open attempt {attempt} of {name}", http_status=403)
        if host not in job.hosts:
            raise WireError("NoSuchHost", f"{name} has no host {host}", http_status=404)
        return job

    def assignment(self, job: TrainingJob) -> LaunchPlan:
        """Return the plan of the current attempt."""
        return from_plain(LaunchPlan, job.plan)

    async def report(self, job: TrainingJob, host: str, report: Report) -> ReportReceipt:
        """Store changed facts; unchanged facts are a heartbeat and cost no write.

        Args:
            job: the job returned by `authorize`.
            host: host that reports.
            report: all facts of the host; a report whose number is not above the last number is only a heartbeat.
        Raises: WireError 400 for impossible facts, 410 when the attempt has ended or the job was deleted meanwhile.
        """
        failure = report.facts.failure
        if failure is not None and failure.fault not in _FAULTS:
            raise WireError(
                "ValidationException", f"unknown fault {failure.fault[:80]!r}; known are {', '.join(_FAULTS)}"
            )
        record = job.hosts[host]
        was_told = record.order is not None and record.order.kind is OrderKind.RELEASE
        if report.facts.phase is HostPhase.RELEASED and not was_told:
            # A released host owes no results, and its silence is ignored: if hosts could release themselves without an
            # order, the job would never end.
            raise WireError("ValidationException", f"{host} was not told to leave: a host is released only by an order")
        self._signs_s.setdefault((job.name, job.attempt), {})[host] = self._clock.monotonic()
        self._hear(job, host)
        if report.facts != record.facts and report.number > record.report_number:
            reporter = (job.name, job.attempt, host)
            self._open_reports[reporter] += 1
            try:
                await self._secure_objects(job.name, record.facts, report.facts)
                job = await self._hub.apply(job.name, events.HostReported(host=host, report=report))
            except JobNotFound as error:
                raise _attempt_over(job.name, job.attempt) from error
            finally:
                self._open_reports[reporter] -= 1
                self._open_reports += Counter()  # removes counts of zero
            await self._store_lag(job, host, report.facts.checkpoints)
            if host not in job.hosts:  # the attempt has ended meanwhile
                raise _attempt_over(job.name, job.attempt)
            self._hear(job, host)  # silence counts from the answer on
            record = job.hosts[host]
        order, dump = record.order, self._dumps.wanted(job, host)
        is_wanted = record.facts.phase is not HostPhase.LOST
        return ReportReceipt(
            accepted=is_wanted,
            order_number=order.number if order is not None else 0,
            dump_number=dump.number if dump is not None else 0,
            dump_reason=dump.reason if dump is not None else "",
            profile=self._profiles.wanted(job, host),
            metrics_interval_s=(job.plan or {}).get("metrics_interval_s", 0.0),  # UpdateTrainingJob may change it
        )

    async def _secure_objects(self, name: str, known: HostFacts, facts: HostFacts) -> None:
        """Force objects to the disk before a report says that they are complete; for checkpoints only begin that.

        A job's terminal status is on the disk at once. Without this, it could survive a power cut that its results do
        not survive. A report that waits here for longer than its agent does is sent again, and waits again.

        Args:
            name: name of the job.
            known: facts of the host's last report.
            facts: facts of this report.
        """
        if self._objects is None:
            return
        if facts.uploaded and facts.uploaded != known.uploaded and not facts.results_are_empty:
            await self._objects.flush(f"job {name}: its results")
        elif _has_new_set(known.checkpoints, facts.checkpoints):
            self._objects.begin(f"job {name}: its checkpoints")

    async def take_dump(self, job: TrainingJob, host: str, dump: HostDump) -> None:
        """Store a host's dump. Raises: WireError 404 for an answer to a request that this attempt and host do not have.

        Args:
            job: the job returned by `authorize`.
            host: host that sends.
            dump: the dump; its number is 0 if nobody requested it.
        """
        await self._dumps.take(job, host, dump)

    async def take_profile(self, job: TrainingJob, host: str, profile: HostProfile) -> None:
        """Store a host's report on its ranks' profiles. Raises: WireError 404 for a report on an unknown profile.

        Args: as `ProfileDesk.take`.
        """
        await self._profiles.take(job, host, profile)

    async def take_trace(
        self, job: TrainingJob, host: str, piece: bytes, *, number: int, rank: int, offset: int, is_last: bool
    ) -> None:
        """Store a part of a rank's trace. Raises: WireError as `take_profile`, 400 for a gap or too long a trace.

        Args: as `ProfileDesk.take_piece`.
        """
        await self._profiles.take_piece(job, host, piece, number=number, rank=rank, offset=offset, is_last=is_last)

    async def _store_lag(self, job: TrainingJob, host: str, facts: CheckpointFacts | None) -> None:
        """Store the lag of a host's checkpoints, every few seconds while it changes."""
        if facts is None:
            return
        now_s = self._clock.monotonic()
        stored_s, last = self._lags.get((job.name, host), (now_s, None))
        if not host_metrics.is_due(facts, last, since_s=now_s - stored_s):
            return
        self._lags[job.name, host] = (now_s, facts)
        try:
            await self._metrics.add_metrics(job.name, host_metrics.values_of(host, facts, at=self._clock.now()))
        except JobNotFound as error:
            raise _attempt_over(job.name, job.attempt) from error

    def _hear(self, job: TrainingJob, host: str) -> None:
        self._heard_s.setdefault((job.name, job.attempt), {})[host] = self._attentive.monotonic()
        self._attentive.wake()

    def close(self) -> None:
        """End all waits for orders, also later ones, because the service ends; agents ask the next service."""
        self._is_closed = True
        self._hub.wake_watchers()

    async def next_order(self, job: TrainingJob, host: str, *, after: int, wait_s: float) -> Order:
        """Return the host's order once it is newer than `after`, or the present order when `wait_s` is over.

        Args:
            job: the job returned by `authorize`.
            host: host that polls; the poll counts as a sign of life.
            after: number of the last order that the host has; 0 without an order.
            wait_s: longest wait in seconds; if the attempt has ended, the answer is an order to leave.
        Raises: WireError 503 when the service ends.
        """
        deadline_s = self._clock.monotonic() + max(0.0, wait_s)  # in this order of arguments, NaN becomes 0
        while True:
            current = self._hub.live_job(job.name)
            # A deleted job's name may be in use again by now; a job that waits for its next attempt has no hosts.
            is_same = current is not None and (current.attempt, current.created_at) == (job.attempt, job.created_at)
            if current is None or not is_same or host not in current.hosts:
                return Order(number=after + 1, kind=OrderKind.RELEASE, reason="the attempt is over")
            self._hear(job, host)
            order = current.hosts[host].order
            left_s = deadline_s - self._clock.monotonic()
            if order is not None and (order.number > after or left_s <= 0):
                return order
            if self._is_closed:
                raise WireError("ServiceUnavailable", "the service ends; ask the next one", http_status=503)
            await self._hub.wait_for_job(job.name, max(left_s, 0.0))

    async def append_logs(self, job: TrainingJob, host: str, batch: LogBatch) -> LogReceipt:
        """Store lines, and the metrics that agents found in them, exactly once.

        Args:
            job: the job returned by `authorize`.
            host: host of the stream.
            batch: lines, numbered from 0 in every attempt; the agent may send it again if the answer was lost.
        Raises: WireError 400 for negative line numbers and for too many lines; 410 when the job was deleted.
        """
        if batch.first_sequence < 0:
            raise WireError("ValidationException", f"first_sequence counts from 0, got {batch.first_sequence}")
        num_lines = batch.end_sequence - batch.first_sequence
        if num_lines > MAX_BATCH_LINES:
            raise WireError("ValidationException", f"a batch has at most {MAX_BATCH_LINES} lines, got {num_lines}")
        for metric in (metric for block in batch.blocks for metric in block.metrics):
            _check_metric_name(metric.name)
        stream = next(name for name in job.log_streams if host_of_stream(name) == host)
        base = job.log_bases.get(stream, 0)  # agents count from 0 in every attempt
        batch = replace(batch, first_sequence=base + batch.first_sequence)
        try:
            # A batch that is sent again while its first copy is still being stored must not count twice.
            async with self._log_locks.setdefault(stream, asyncio.Lock()):
                return LogReceipt(next_sequence=await self._append(job, stream, batch) - base)
        except SequenceGap as gap:
            return LogReceipt(next_sequence=gap.next_sequence - base)
        except JobNotFound as error:
            raise _attempt_over(job.name, job.attempt) from error
        except StreamNotFound as error:
            if self._hub.live_job(job.name) is not None:
                raise
            raise _attempt_over(job.name, job.attempt) from error

    async def _append(self, job: TrainingJob, stream: str, batch: LogBatch) -> int:
        """Store lines, then their metrics that are not stored yet; return the next sequence.

        Lines are never stored twice, but a failure or a kill can occur between the writes of lines, metrics and last
        values; then the agent sends the batch again. This service remembers which metrics it has stored itself, and
        queries the time series for metrics that an earlier service has stored. Last values are stored each time;
        storing them twice is harmless.
        """
        if stream not in self._counted and any(block.metrics for block in batch.blocks):
            self._counted[stream] = 0
            self._stored_before[stream] = await self._logs.next_sequence(stream)
        next_sequence = await self._logs.append(stream, batch.first_sequence, batch.blocks)
        if stream not in self._counted:
            return next_sequence
        found = metrics_of(batch, counted=self._counted[stream], stored_before=self._stored_before[stream])
        values = [*await self._lacking(job.name, found.doubtful), *found.new]
        if values:
            await self._metrics.add_metrics(job.name, values)
        self._counted[stream] = max(self._counted[stream], found.end_sequence)
        if found.everything:
            await self._hub.record_metrics(job.name, list(found.everything))
        return next_sequence

    async def _lacking(self, name: str, doubtful: Sequence[FinalMetric]) -> list[FinalMetric]:
        """Return the metrics whose lines an earlier service has stored without the metrics."""
        stored: list[FinalMetric] = []
        for metric in sorted({one.name for one in doubtful}):
            times = [one.at for one in doubtful if one.name == metric]
            stored += await self._metrics.query_metrics(
                name, metric, min(times), max(times) + timedelta(microseconds=1)
            )
        return lacking(doubtful, stored)


def _has_new_set(known: CheckpointFacts | None, facts: CheckpointFacts | None) -> bool:
    """Whether a host has stored a set of checkpoints since its last report."""
    if facts is None or facts.committed_at is None:
        return False
    return known is None or facts.set_number != known.set_number


def _check_metric_name(name: str) -> None:
    """Refuse a metric's name that no request can define, or that some databases cannot store."""
    try:
        num_bytes = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        num_bytes = 0
    if not 0 < num_bytes <= MAX_METRIC_NAME_BYTES or "\0" in name:
        raise WireError("ValidationException", f"this is no name of a metric: {name[:80]!r}")


def _attempt_over(name: str, attempt: int) -> WireError:
    return WireError("AttemptOver", f"attempt {attempt} of {name} is over", http_status=410)
