"""One OpenTelemetry trace of an ended job: the job, its attempts, the phases of each host. Pure.

Where: `reconcile.trace_exporter` sends the trace. The spans below an attempt are the stretches of its hosts' time that
the ledger adds up.
Source: OTLP/HTTP with JSON, the protobuf JSON mapping of ExportTraceServiceRequest: identifiers in hex, 64-bit numbers
as text. Identifiers are digests of the job, so that a trace that is sent twice is the same trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from clary import __version__
from clary.contract.statuses import TrainingJobStatus
from clary.control.analysis.time_parts import attempts_of_rows, cut_time
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob

MAX_SPANS = 5000  # spans of one trace; collectors refuse bodies of some megabytes
INTERNAL = 1  # SpanKind
OK, ERROR = 1, 2  # StatusCode
MAX_TEXT = 1024  # characters of a reason
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def trace_request(jobs: Sequence[TrainingJob], *, region: str) -> dict[str, Any]:
    """Return the body of one export.

    Args:
        jobs: jobs that have ended.
        region: region of the service.
    """
    resource = {"service.name": "clary", "service.version": __version__, "cloud.region": region}
    scope = {"name": "clary.jobs", "version": __version__}
    spans = [span for job in jobs for span in spans_of(job)]
    return {
        "resourceSpans": [
            {"resource": {"attributes": _attributes(resource)}, "scopeSpans": [{"scope": scope, "spans": spans}]}
        ]
    }


def spans_of(job: TrainingJob) -> list[dict[str, Any]]:
    """Return the spans of a job, of its attempts, and of its hosts' stretches, at most MAX_SPANS in all."""
    trace_id = _digest(job.arn, job.created_at.isoformat(), length=16)
    lanes = cut_time(job, now=job.modified_at)
    last = [stretches[-1].end for stretches in lanes.values() if stretches]
    end = max([job.created_at, job.training_ended_at or job.modified_at, *last])
    root_id = _digest(trace_id, "job", length=8)
    attempts = _attempts(job, end)
    parts: list[dict[str, Any]] = []
    for host, stretches in lanes.items():
        for index, stretch in enumerate(stretches):
            number = _attempt_at(attempts, stretch.start)
            parts.append(
                _span(
                    trace_id,
                    _digest(trace_id, host, str(index), length=8),
                    root_id if number is None else _digest(trace_id, "attempt", str(number), length=8),
                    f"{host} {stretch.part.value}",
                    start=stretch.start,
                    end=stretch.end,
                    attributes={"host.name": host, "clary.part": stretch.part.value},
                )
            )
    room = max(0, MAX_SPANS - 1 - len(attempts))
    tries = [
        _span(
            trace_id,
            _digest(trace_id, "attempt", str(number), length=8),
            root_id,
            f"attempt {number}",
            start=begun,
            end=ended,
            attributes={"clary.attempt": number, **told},
            is_error=bool(told),
        )
        for number, (begun, ended, told) in attempts.items()
    ]
    root = _root(job, trace_id, root_id, end=end, num_left_out=max(0, len(parts) - room))
    return [root, *tries[: MAX_SPANS - 1], *parts[:room]]


def _root(job: TrainingJob, trace_id: str, root_id: str, *, end: datetime, num_left_out: int) -> dict[str, Any]:
    request = JobRequest(job.request)
    attributes: dict[str, str | int] = {
        "clary.job.name": job.name,
        "clary.job.arn": job.arn,
        "clary.job.status": job.status.value,
        "clary.job.hosts": request.num_hosts,
        "clary.job.instance_types": ",".join(dict.fromkeys(group.instance_type for group in request.instance_groups)),
        "clary.job.restarts": len(job.past_attempts),
    }
    if num_left_out:
        attributes["clary.spans_left_out"] = num_left_out
    reason = "" if job.failure is None or job.status is not TrainingJobStatus.FAILED else job.failure.reason
    return _span(
        trace_id,
        root_id,
        "",
        f"training job {job.name}",
        start=job.created_at,
        end=end,
        attributes=attributes,
        is_error=job.status is TrainingJobStatus.FAILED,
        message=reason,
    )


def _attempts(job: TrainingJob, end: datetime) -> dict[int, tuple[datetime, datetime, dict[str, str]]]:
    """Return attempt number -> start, end, and the kind and reason of an early end."""
    begins: dict[int, datetime] = {}
    for row, index in zip(job.transitions, attempts_of_rows(job.transitions), strict=True):
        begins.setdefault(index + 1, row.started_at)
    past = {attempt.number: attempt for attempt in job.past_attempts}
    found = {}
    for number in range(1, job.attempt + 1):
        begun = begins.get(number, job.created_at)
        early = past.get(number)
        told = {} if early is None else {"clary.end": early.kind.value, "clary.reason": early.reason[:MAX_TEXT]}
        found[number] = (begun, max(begun, end if early is None else early.ended_at), told)
    return found


def _attempt_at(attempts: Mapping[int, tuple[datetime, datetime, Mapping[str, str]]], moment: datetime) -> int | None:
    """Return the number of the newest attempt that runs at `moment`; None between attempts."""
    running = [
        number for number, (start, end, _) in attempts.items() if start <= moment < max(end, start + _MICROSECOND)
    ]
    return max(running, default=None)


def _span(
    trace_id: str,
    span_id: str,
    parent_id: str,
    name: str,
    *,
    start: datetime,
    end: datetime,
    attributes: Mapping[str, str | int],
    is_error: bool = False,
    message: str = "",
) -> dict[str, Any]:
    status: dict[str, Any] = {"code": ERROR if is_error else OK}
    if message:
        status["message"] = message[:MAX_TEXT]
    parent = {"parentSpanId": parent_id} if parent_id else {}
    return {
        "traceId": trace_id,
        "spanId": span_id,
        **parent,
        "name": name,
        "kind": INTERNAL,
        "startTimeUnixNano": _nanoseconds(start),
        "endTimeUnixNano": _nanoseconds(max(start, end)),
        "attributes": _attributes(attributes),
        "status": status,
    }


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]


def _nanoseconds(moment: datetime) -> str:
    return str((moment - _EPOCH) // _MICROSECOND * 1000)


def _digest(*words: str, length: int) -> str:
    """Return `length` bytes in hex; never all zero, which would stand for no identifier."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[: 2 * length - 1] + "1"
