"""/metrics: the right to read it, its values, and that the dashboard queries no other metrics."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from own_pages import FewParts
from prometheus_client.parser import text_string_to_metric_families
from server_parts import START, request, running_job

from clary.contract.agent_protocol import CheckpointFacts
from clary.contract.metric_samples import SampleBatch
from clary.control.jobs.training_job import AttemptEnd, JobFailure, PastAttempt
from clary.control.reconcile.gateways.sample_gateway import FRESH_S, SampleGateway
from clary.control.server.pages.metrics_page import MetricsPage
from clary.testing.fake_clock import FakeClock

NOW = START + timedelta(seconds=60)
NOW_MS = int(NOW.timestamp() * 1000)
DASHBOARD = Path(__file__).parents[5] / "docs" / "grafana" / "clary.json"
HOST_SERIES = (
    *("cpu_percent", "cpu_throttled_percent", "memory_bytes", "memory_limit_bytes", "memory_percent"),
    *("disk_used_percent", "disk_read_bytes_s", "disk_write_bytes_s"),
    *("network_received_bytes_s", "network_sent_bytes_s"),
)
GPU_SERIES = ("utilisation_percent", "memory_used_bytes", "memory_percent", "power_w", "temperature_c", "throttled")
RANK_SERIES = ("cpu_percent", "memory_bytes", "read_bytes_s", "write_bytes_s", "num_threads", "num_processes")
NAMES = (
    *(f"host/{name}" for name in HOST_SERIES),
    *(f"gpu-0/{name}" for name in GPU_SERIES),
    *(f"rank-3/{name}" for name in RANK_SERIES),
    "step/forward_ms",
)


class FakeSeries:
    """Accepts every row."""

    async def append(self, job_name, attempt, host, table, *, first_row, num_dropped=0):
        return first_row + table.num_rows


def job_with_past(**changes):
    job = running_job(**changes)
    failure = JobFailure(fault="infrastructure", message="algo-1 was lost")
    ended = {"asked_at": START, "ended_at": START, "reason": "r"}
    past = (
        PastAttempt(number=1, kind=AttemptEnd.RECLAIMED, **ended),
        PastAttempt(number=2, kind=AttemptEnd.RESTARTED, failure=failure, **ended),
        PastAttempt(number=3, kind=AttemptEnd.RESTARTED, failure=failure, **ended),
    )
    facts = CheckpointFacts(lag_s=1.5, dirty_bytes=4096)
    hosts = {
        name: replace(record, facts=replace(record.facts, checkpoints=facts)) for name, record in job.hosts.items()
    }
    return replace(job, past_attempts=past, hosts=hosts)


class Page:
    """The page for a running job and a waiting job, with samples of a host."""

    def __init__(self, access="token"):
        self.clock = FakeClock(NOW)
        self.job = job_with_past()
        waiting = replace(running_job(), name="later", hosts={}, created_at=START)
        hub = SimpleNamespace(active_jobs=lambda: [self.job], waiting_jobs=lambda: {"later": waiting})
        self.samples = SampleGateway(FakeSeries(), self.clock)
        self.page = FewParts(metrics=MetricsPage(hub, self.samples, self.clock), metrics_page=access).handler

    async def measure(self, first_row=0, names=NAMES, value=2.5):
        batch = SampleBatch(first_row=first_row, at_ms=(NOW_MS,), names=names, columns=((value,),) * len(names))
        await self.samples.append(self.job, "algo-1", batch)

    async def read(self):
        answer = await self.page.handle(request("/metrics"))
        assert answer.status == 200
        return {family.name: family for family in text_string_to_metric_families(answer.body.decode())}

    async def samples_of(self, name):
        return [(sample.labels, sample.value) for sample in (await self.read())[name].samples]


@pytest.mark.parametrize(
    ("access", "token", "status"),
    [
        ("token", "token", 200),
        ("token", "wrong", 403),
        ("token", None, 403),
        ("open", None, 200),
        ("off", "token", 404),
    ],
)
async def test_the_setting_decides_which_tokens_may_read_the_metrics(access, token, status):
    assert (await Page(access).page.handle(request("/metrics", token=token))).status == status


async def test_the_last_values_of_a_host_are_labelled_with_job_host_gpu_and_rank():
    page = Page()
    await page.measure()
    await page.measure(first_row=1, value=7.0)
    labels = {"training_job": "job-1", "host": "algo-1"}
    assert await page.samples_of("clary_host_cpu_percent") == [(labels, 7.0)]
    assert await page.samples_of("clary_gpu_power_w") == [(labels | {"gpu": "0"}, 7.0)]
    assert await page.samples_of("clary_rank_cpu_percent") == [(labels | {"rank": "3"}, 7.0)]
    assert await page.samples_of("clary_series") == [(labels | {"series": "step/forward_ms"}, 7.0)]
    assert await page.samples_of("clary_sample_rows") == [({}, 2.0)]


async def test_a_silent_host_and_a_host_of_an_older_attempt_have_no_values():
    page = Page()
    await page.measure()
    page.clock.advance(FRESH_S + 1)
    assert "clary_host_cpu_percent" not in await page.read()
    await page.measure()
    page.job = replace(page.job, attempt=page.job.attempt + 1)
    assert "clary_host_cpu_percent" not in await page.read()


async def test_jobs_queue_restarts_and_checkpoints_are_exposed():
    page = Page()
    assert await page.samples_of("clary_jobs") == [({"secondary_status": "Training"}, 2.0)]
    assert await page.samples_of("clary_jobs_waiting") == [({}, 1.0)]
    assert await page.samples_of("clary_job_waiting_seconds") == [({"training_job": "later"}, 60.0)]
    assert await page.samples_of("clary_job_restarts") == [
        ({"training_job": "job-1", "cause": "infrastructure"}, 2.0),
        ({"training_job": "job-1", "cause": "reclaimed"}, 1.0),
    ]
    assert await page.samples_of("clary_checkpoint_lag_seconds") == [
        ({"training_job": "job-1", "host": "algo-1"}, 1.5),
        ({"training_job": "job-1", "host": "algo-2"}, 1.5),
    ]
    assert await page.samples_of("clary_job_hosts") == [({"training_job": "job-1", "phase": "running"}, 2.0)]


async def test_every_metric_that_the_dashboard_names_exists():
    page = Page()
    await page.measure()
    there = {sample.name for family in (await page.read()).values() for sample in family.samples}
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    assert not any(
        re.search(r"[{,( ]job[=,)]", expression) for expression in asked
    )  # the label `job` belongs to Prometheus
    named = {name for expression in asked for name in re.findall(r"clary_[a-z0-9_]+", expression)}
    assert len(named) > 15
    assert named <= there


def test_the_panels_of_the_dashboard_have_unique_ids_and_positions():
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
