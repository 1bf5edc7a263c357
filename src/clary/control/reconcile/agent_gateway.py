"""The service's side of the agent protocol.

Where: `server.agent_routes` parses HTTP and calls this; facts go to the hub as events, orders come from the job record.
"""

from __future__ import annotations

import hmac
from datetime import datetime
from typing import Any, Protocol

from clary.contract.agent_protocol import LogBatch, LogReceipt, Order, OrderKind, Report, ReportReceipt
from clary.contract.clock import Clock
from clary.contract.errors import WireError
from clary.contract.launch_plan import LaunchPlan
from clary.contract.plain import from_plain
from clary.control.jobs import events
from clary.control.jobs.training_job import FinalMetric, TrainingJob
from clary.control.reconcile.hub import JobHub
from clary.control.store.errors import SequenceGap


class LogSink(Protocol):
    """What the gateway needs of the log store."""

    async def next_sequence(self, stream: str) -> int:
        """Return the sequence that the stream expects next."""

    async def append(self, stream: str, first_sequence: int, lines: Any) -> int:
        """Store lines exactly once by sequence; return the next sequence."""


class MetricSink(Protocol):
    """What the gateway needs of the metric store."""

    async def add_metrics(self, job_name: str, values: list[FinalMetric]) -> None:
        """Store metric values."""


class AgentGateway:
    """Answers agents; holds when each was last heard, which is not worth a write."""

    def __init__(self, hub: JobHub, logs: LogSink, metrics: MetricSink, clock: Clock) -> None:
        self._hub = hub
        self._logs = logs
        self._metrics = metrics
        self._clock = clock
        self._started_at = clock.now()
        self._heard: dict[tuple[str, int], dict[str, datetime]] = {}

    def last_heard(self, job: TrainingJob) -> dict[str, datetime]:
        """Return host -> time last heard; hosts that reported to an earlier service count from this one's start."""
        heard = dict(self._heard.get((job.name, job.attempt), {}))
        for name, record in job.hosts.items():
            if record.report_number > 0:
                heard.setdefault(name, self._started_at)
        return heard

    def forget(self, job: TrainingJob) -> None:
        """Drop what is remembered of a job that is over."""
        self._heard.pop((job.name, job.attempt), None)

    def authorize(self, name: str, attempt: int, host: str, token: str) -> TrainingJob:
        """Return the live job that the agent belongs to.

        Raises: WireError 410 when the attempt is over, 403 when the token is wrong, 404 for an unknown host.
        """
        job = self._hub.live_job(name)
        if job is None or job.plan is None or job.attempt != attempt:
            raise WireError("AttemptOver", f"attempt {attempt} of {name} is over", http_status=410)
        if not hmac.compare_digest(str(job.plan["agent_token"]).encode(), token.encode()):
            raise WireError("AccessDenied", f"the token does not open attempt {attempt} of {name}", http_status=403)
        if host not in job.hosts:
            raise WireError("NoSuchHost", f"{name} has no host {host}", http_status=404)
        return job

    def assignment(self, job: TrainingJob) -> LaunchPlan:
        """Return the plan of the current attempt."""
        return from_plain(LaunchPlan, job.plan)

    async def report(self, job: TrainingJob, host: str, report: Report) -> ReportReceipt:
        """Take up facts; unchanged facts are a heartbeat and cost no write."""
        self._heard.setdefault((job.name, job.attempt), {})[host] = self._clock.now()
        record = job.hosts[host]
        if report.facts != record.facts and report.number > record.report_number:
            job = await self._hub.apply(job.name, events.HostReported(host=host, report=report))
            record = job.hosts[host]
        order = record.order
        is_ours = record.facts.phase.value != "lost"
        return ReportReceipt(accepted=is_ours, order_number=order.number if order is not None else 0)

    async def next_order(self, job: TrainingJob, host: str, *, after: int, wait_s: float) -> Order:
        """Wait until an order newer than `after` stands for the host; answer the standing one after `wait_s`."""
        deadline = self._clock.monotonic() + wait_s
        while True:
            current = self._hub.live_job(job.name)
            if current is None or current.attempt != job.attempt:
                return Order(number=after + 1, kind=OrderKind.RELEASE, reason="the attempt is over")
            self._heard.setdefault((job.name, job.attempt), {})[host] = self._clock.now()
            order = current.hosts[host].order
            left_s = deadline - self._clock.monotonic()
            if order is not None and (order.number > after or left_s <= 0):
                return order
            await self._hub.wait_for_job(job.name, max(left_s, 0.0))

    async def append_logs(self, job: TrainingJob, host: str, batch: LogBatch) -> LogReceipt:
        """Store lines exactly once and the metrics that agents found in them."""
        stream = next(name for name in job.log_streams if name.split("/", 1)[1].rpartition("-")[0] == host)
        has_metrics = any(line.metrics for line in batch.lines)
        # Lines that were sent before are dropped by the store; their metrics must not count twice either.
        num_known = await self._logs.next_sequence(stream) - batch.first_sequence if has_metrics else 0
        try:
            next_sequence = await self._logs.append(stream, batch.first_sequence, batch.lines)
        except SequenceGap as gap:
            return LogReceipt(next_sequence=gap.next_sequence)
        values = [
            FinalMetric(name=metric.name, value=metric.value, at=metric.at)
            for line in batch.lines[max(num_known, 0) :]
            for metric in line.metrics
        ]
        if values:
            await self._metrics.add_metrics(job.name, values)
            await self._hub.record_metrics(job.name, values)
        return LogReceipt(next_sequence=next_sequence)
