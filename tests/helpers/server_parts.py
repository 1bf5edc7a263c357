"""Requests to the service's own pages, and a job with all data that the pages show."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

from clary.base.plain import to_plain
from clary.contract.agent_protocol import HostFacts, HostPhase, ProcessExit
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs.training_job import HostRecord, StatusTransition, TrainingJob
from clary.control.scheduling.prices import load_prices
from clary.control.series.queries import SeriesAnswer
from clary.control.services.call import Services
from clary.control.wire.messages import HttpRequest
from clary.testing.fake_clock import FakeClock
from clary.testing.launch_plans import make_hosts, make_plan

START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)


def request(path, *, query="", token="token", method="GET", body=b""):
    headers = [] if token is None else [("Authorization", f"Bearer {token}")]
    return HttpRequest(method, path, query, headers, body)


def document(answer):
    assert answer.header("content-type") == "application/json"
    return json.loads(answer.body)


def exit_of(rank, code, *, signal=None):
    return ProcessExit(rank=rank, local_rank=0, pid=1, exit_code=code, signal=signal, ended_at=START)


def running_job(**changes):
    """Return a job with two hosts that run."""
    facts = HostFacts(
        phase=HostPhase.RUNNING,
        phase_started_at=START,
        timings_s={"code": 0.5},
        notes=("a word",),
        not_isolated=("the clock",),
    )
    hosts = {
        "algo-1": HostRecord(facts=replace(facts, exits=(exit_of(0, 3), exit_of(1, None, signal=9)))),
        "algo-2": HostRecord(facts=facts),
    }
    job = TrainingJob(
        name="job-1",
        arn="arn:job-1",
        request={"AlgorithmSpecification": {"TrainingImage": "image:1"}},
        status=TrainingJobStatus.IN_PROGRESS,
        secondary_status=SecondaryStatus.TRAINING,
        transitions=(
            StatusTransition(
                status=SecondaryStatus.STARTING, started_at=START, ended_at=START + timedelta(seconds=2), message="m"
            ),
            StatusTransition(status=SecondaryStatus.TRAINING, started_at=START + timedelta(seconds=2), message="n"),
        ),
        created_at=START,
        modified_at=START,
        attempt=1,
        hosts=hosts,
        plan=to_plain(make_plan(hosts=make_hosts(2))),
        log_streams=("job-1/algo-1-1", "job-1/algo-2-1"),
        warnings=("mind the gap",),
        emulation=("ml.p4d.24xlarge has 8 GPUs",),
    )
    return replace(job, **changes)


class FakeServices(SimpleNamespace):
    """Live jobs in memory, stored jobs in another dictionary."""

    find_job = Services.find_job

    def __init__(self, live=(), stored=(), logs=None):
        live_jobs = {job.name: job for job in live}
        stored_jobs = {job.name: job for job in stored}

        async def get_job(name):
            return stored_jobs.get(name)

        async def progress_of(name, attempt):
            return []

        async def query(query):
            return SeriesAnswer(series=())

        super().__init__(
            hub=SimpleNamespace(live_job=live_jobs.get),
            store=SimpleNamespace(
                get_job=get_job, training=SimpleNamespace(progress_of=progress_of), series=SimpleNamespace(query=query)
            ),
            admission=SimpleNamespace(pending_reason=lambda job: job.pending_reason),
            queue=SimpleNamespace(place=lambda job: None, places=dict),
            logs=logs,
            clock=FakeClock(START + timedelta(seconds=12)),
            prices=load_prices(),
        )
