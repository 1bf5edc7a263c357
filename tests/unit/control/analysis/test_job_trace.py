"""Traces of jobs: nested spans, stable identifiers, and the JSON of OTLP."""

import itertools
import re
from dataclasses import replace
from datetime import timedelta

import pytest

from clary.control.analysis import job_trace
from clary.control.analysis.job_trace import spans_of, trace_request
from clary.control.jobs.training_job import AttemptEnd, PastAttempt
from clary.testing.control_plane import ControlPlane


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


def begin(span):
    return int(span["startTimeUnixNano"])


def end(span):
    return int(span["endTimeUnixNano"])


def told(span):
    return {item["key"]: next(iter(item["value"].values())) for item in span["attributes"]}


async def finished(plane, *, exit_code=0, num_hosts=2):
    """Return a job that has completed, with its events seconds apart."""
    await plane.create(num_hosts=num_hosts)
    plane.clock.advance(7)
    await plane.run_to_end(exit_code=exit_code, num_hosts=num_hosts)
    return await plane.job()


async def test_a_trace_has_spans_for_the_job_its_attempt_and_each_host(plane):
    job = await finished(plane)
    root, attempt, *parts = spans_of(job)
    assert (root["name"], "parentSpanId" in root) == ("training job job", False)
    assert begin(root) == job.created_at.timestamp() * 1e9
    assert (attempt["name"], attempt["parentSpanId"]) == ("attempt 1", root["spanId"])
    assert {told(part)["host.name"] for part in parts} == {"algo-1", "algo-2"}
    assert {"queued", "productive"} & {told(part)["clary.part"] for part in parts}
    ids = {span["spanId"]: span for span in (root, attempt, *parts)}
    assert len(ids) == 2 + len(parts)
    for span in (attempt, *parts):
        parent = ids[span["parentSpanId"]]
        assert begin(parent) <= begin(span) <= end(span) <= end(parent), span["name"]
    assert told(root)["clary.job.status"] == "Completed"
    assert told(root)["clary.job.hosts"] == "2"
    assert root["status"] == {"code": job_trace.OK}


async def test_spans_of_a_host_leave_no_gap(plane):
    spans = spans_of(await finished(plane, num_hosts=1))
    parts = [span for span in spans if "clary.part" in told(span)]
    assert begin(parts[0]) == begin(spans[0])
    assert end(parts[-1]) == end(spans[0])
    assert all(end(first) == begin(second) for first, second in itertools.pairwise(parts))


async def test_a_failed_job_is_an_error_span_with_its_reason(plane):
    root, *_ = spans_of(await finished(plane, exit_code=3, num_hosts=1))
    assert root["status"]["code"] == job_trace.ERROR
    assert "exit code: 3" in root["status"]["message"].lower()


async def test_the_same_job_has_the_same_identifiers_and_another_has_others(plane):
    job = await finished(plane, num_hosts=1)
    await plane.create("job-2")
    other = await plane.job("job-2")
    assert spans_of(job) == spans_of(job)
    known = {span["spanId"] for span in spans_of(job)}
    assert known.isdisjoint({span["spanId"] for span in spans_of(other)})
    assert spans_of(job)[0]["traceId"] != spans_of(other)[0]["traceId"]


async def test_an_attempt_that_ended_early_is_an_error_span_before_the_next_attempt(plane):
    job = await finished(plane, num_hosts=1)
    third = len(job.transitions) // 3
    early_end = job.transitions[third].started_at + timedelta(seconds=1)
    early = PastAttempt(
        number=1, kind=AttemptEnd.RECLAIMED, reason="capacity went", asked_at=early_end, ended_at=early_end
    )
    spans = spans_of(replace(job, attempt=2, past_attempts=(early,)))
    first = next(span for span in spans if span["name"] == "attempt 1")
    assert first["status"]["code"] == job_trace.ERROR
    assert (told(first)["clary.end"], told(first)["clary.reason"]) == (AttemptEnd.RECLAIMED.value, "capacity went")
    assert end(first) == int(early_end.timestamp() * 1e6) * 1000
    assert told(spans[0])["clary.job.restarts"] == "1"
    second = next(span for span in spans if span["name"] == "attempt 2")
    assert second["status"]["code"] == job_trace.OK
    places = {span["spanId"]: span for span in spans}
    for span in spans[1:]:
        parent = places[span["parentSpanId"]]
        assert begin(parent) <= begin(span) <= end(parent), (span["name"], parent["name"])


async def test_a_trace_is_bounded_and_counts_omitted_spans(plane, monkeypatch):
    job = await finished(plane)
    num_all = len(spans_of(job))
    monkeypatch.setattr(job_trace, "MAX_SPANS", 4)
    spans = spans_of(job)
    assert len(spans) == 4
    assert told(spans[0])["clary.spans_left_out"] == str(num_all - 4)


async def test_identifiers_and_times_have_the_forms_of_otlp(plane):
    job = await finished(plane)
    body = trace_request([job], region="us-west-2")
    (resource,) = body["resourceSpans"]
    assert told(resource["resource"])["service.name"] == "clary"
    for span in resource["scopeSpans"][0]["spans"]:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
        assert re.fullmatch("[0-9a-f]{16}", span["spanId"])
        assert span["startTimeUnixNano"].isdecimal()
        assert span["endTimeUnixNano"].isdecimal()
        assert all(isinstance(item["value"], dict) and len(item["value"]) == 1 for item in span["attributes"])
