"""Measurements of hosts, from an agent's batch to CloudWatch's responses and the page for users."""

import json
from datetime import timedelta

import pytest
from own_pages import FewParts

from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.contract.metric_samples import SampleBatch
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.control.reconcile.series_keeping import keep_series_once
from clary.control.server.pages.series_page import default_step_ms, series_page
from clary.control.wire.messages import HttpRequest
from clary.testing.control_plane import ControlPlane
from clary.testing.fake_clock import START

NAMESPACE = "/aws/sagemaker/TrainingJobs"
HOST = [{"Name": "Host", "Value": "job/algo-1"}]
START_MS = int(START.timestamp() * 1000)
ALL = ["Average", "Sum", "Minimum", "Maximum", "SampleCount"]
SERIES = {
    "host/cpu_percent": 150.0,
    "host/memory_percent": 40.0,
    "host/disk_used_percent": 12.0,
    "gpu-0/utilisation_percent": 90.0,
    "gpu-1/utilisation_percent": 70.0,
    "gpu-0/memory_percent": 30.0,
    "gpu-1/memory_percent": 20.0,
    "rank-0/cpu_percent": 75.0,
}


class Plane:
    """A service with one job, whose agent sends samples over HTTP."""

    def __init__(self, plane):
        self.plane = plane
        self.samples = SampleGateway(plane.store.series, plane.clock)
        self.routes = FewParts(agents=plane.gateway, samples=self.samples)
        self.token = plane.agent().token

    async def post(self, first_row, num_rows, *, columns=SERIES, host="algo-1", token=None, start_ms=START_MS, **more):
        """Send rows at intervals of half a second; even rows hold each value itself, odd rows the value plus one."""
        batch = SampleBatch(
            first_row=first_row,
            at_ms=tuple(start_ms + 500 * row for row in range(first_row, first_row + num_rows)),
            names=tuple(columns),
            columns=tuple(
                tuple(value + row % 2 for row in range(first_row, first_row + num_rows)) for value in columns.values()
            ),
            **more,
        )
        body = json.dumps(to_plain(batch)).encode()
        headers = [("Authorization", f"Bearer {token or self.token}")]
        path = f"/clary/v1/agents/job/1/{host}/samples"
        answer = await self.routes.handle(HttpRequest("POST", path, "", headers, body))
        return json.loads(answer.body)["next_row"]

    async def statistics(self, metric, **changes):
        asked = {
            "Namespace": NAMESPACE,
            "MetricName": metric,
            "Dimensions": HOST,
            "StartTime": START,
            "EndTime": START + timedelta(hours=1),
            "Period": 60,
            "Statistics": ALL,
        }
        return (await self.plane.call("cloudwatch", "GetMetricStatistics", **(asked | changes)))["Datapoints"]

    async def data(self, *queries, **changes):
        asked = {"StartTime": START, "EndTime": START + timedelta(hours=1), "MetricDataQueries": list(queries)}
        return (await self.plane.call("cloudwatch", "GetMetricData", **(asked | changes)))["MetricDataResults"]


def metric_query(name, metric, *, stat="Average", period=60, dimensions=HOST, **more):
    asked = {"Namespace": NAMESPACE, "MetricName": metric, "Dimensions": dimensions}
    return {"Id": name, "MetricStat": {"Metric": asked, "Period": period, "Stat": stat}, **more}


@pytest.fixture
async def service(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create()
        await plane.passes()
        yield Plane(plane)


async def test_the_response_to_a_batch_is_the_number_of_the_next_row(service):
    assert await service.post(0, 10) == 10
    assert await service.post(0, 10) == 10
    assert await service.post(5, 10) == 15
    assert await service.post(40, 10, num_dropped=25) == 50
    assert service.samples.num_rows == 40  # one batch was sent twice


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"host": "algo-9"}, "NoSuchHost"),
        ({"token": "wrong"}, "AccessDenied"),
        ({"columns": {"../x": 1.0}}, "ValidationException"),
        ({"start_ms": 0}, "ValidationException"),
    ],
)
async def test_a_batch_that_no_agent_may_send_is_refused(service, changes, code):
    with pytest.raises(WireError) as refused:
        await service.post(0, 2, **changes)
    assert refused.value.code == code
    assert await service.statistics("CPUUtilization") == []


async def test_a_body_that_is_no_batch_is_refused(service):
    headers = [("Authorization", f"Bearer {service.token}")]
    for body in (b"", b"{}", b'{"first_row": "x", "at_ms": [], "names": [], "columns": []}', b"[" * 100_000):
        with pytest.raises(WireError) as refused:
            await service.routes.handle(HttpRequest("POST", "/clary/v1/agents/job/1/algo-1/samples", "", headers, body))
        assert refused.value.http_status == 400


async def test_numbers_that_no_float_holds_count_as_not_measured(service):
    path, headers = "/clary/v1/agents/job/1/algo-1/samples", [("Authorization", f"Bearer {service.token}")]
    document = {"first_row": 0, "at_ms": [START_MS] * 4, "names": ["host/cpu_percent"]}
    body = json.dumps(document)[:-1] + ', "columns": [[NaN, Infinity, 1e300, 5]]}'
    await service.routes.handle(HttpRequest("POST", path, "", headers, body.encode()))
    (point,) = await service.statistics("CPUUtilization")
    assert (point["Average"], point["SampleCount"]) == (5.0, 1.0)


async def test_instance_metrics_are_percentages_per_minute(service):
    for first in range(0, 240, 40):
        await service.post(first, 40)
    first, second = await service.statistics("CPUUtilization")
    assert first == {
        "Timestamp": START,
        "Unit": "Percent",
        "Average": 150.5,
        "Sum": 150.5 * 120,
        "Minimum": 150.0,
        "Maximum": 151.0,
        "SampleCount": 120.0,
    }
    assert second["Timestamp"] == START + timedelta(minutes=1)


async def test_the_metrics_of_gpus_are_added_up(service):
    await service.post(0, 10)
    (point,) = await service.statistics("GPUUtilization")
    assert (point["Average"], point["Minimum"], point["Maximum"], point["SampleCount"]) == (161.0, 160.0, 162.0, 10.0)
    (point,) = await service.statistics("GPUMemoryUtilization")
    assert point["Average"] == 51.0


async def test_responses_stay_the_same_when_rows_have_become_roll_ups(service):
    for first in range(0, 1200, 200):
        await service.post(first, 200)
    before = await service.statistics("MemoryUtilization")
    service.plane.clock.advance(2 * 86_400)
    for _ in range(4):
        await keep_series_once(service.plane.store.series, service.plane.settings, service.plane.clock)
    assert await service.statistics("MemoryUtilization") == before
    assert len(before) == 10


async def test_list_metrics_names_the_series_of_a_host(service):
    metrics = await service.plane.call("cloudwatch", "ListMetrics", Namespace=NAMESPACE, Dimensions=HOST)
    assert metrics == {"Metrics": []}
    await service.post(0, 2, columns={"host/cpu_percent": 1.0, "gpu-0/memory_percent": 2.0, "rank-0/x": 3.0})
    metrics = await service.plane.call("cloudwatch", "ListMetrics", Namespace=NAMESPACE, Dimensions=HOST)
    assert [metric["MetricName"] for metric in metrics["Metrics"]] == ["CPUUtilization", "GPUMemoryUtilization"]
    assert all(metric["Dimensions"] == HOST for metric in metrics["Metrics"])


async def test_get_metric_data_returns_several_metrics_newest_first(service):
    await service.post(0, 240)
    cpu, gpu = await service.data(
        metric_query("cpu", "CPUUtilization", stat="Maximum"),
        metric_query("gpu", "GPUUtilization", Label="all GPUs"),
    )
    minutes = [START + timedelta(minutes=1), START]
    assert cpu == {
        "Id": "cpu",
        "Label": "CPUUtilization",
        "Timestamps": minutes,
        "Values": [151.0, 151.0],
        "StatusCode": "Complete",
    }
    assert (gpu["Label"], gpu["Values"]) == ("all GPUs", [161.0, 161.0])
    (cpu,) = await service.data(metric_query("cpu", "CPUUtilization"), ScanBy="TimestampAscending")
    assert cpu["Timestamps"] == minutes[::-1]


async def test_get_metric_data_leaves_out_queries_with_return_data_false(service):
    await service.post(0, 2)
    hidden = metric_query("hidden", "CPUUtilization", ReturnData=False)
    results = await service.data(hidden, metric_query("shown", "DiskUtilization"))
    assert [result["Id"] for result in results] == ["shown"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"Id": "e", "Expression": "cpu * 2"}, "does not support Expression"),
        ({"Id": "e"}, "needs a MetricStat"),
        (metric_query("p", "CPUUtilization", stat="p99"), "'p99'"),
        (metric_query("p", "CPUUtilization", period=0), "at least 1 second"),
    ],
)
async def test_get_metric_data_refuses_unsupported_queries_with_the_reason(service, query, words):
    with pytest.raises(WireError, match=words) as refused:
        await service.data(query)
    assert refused.value.code == "ValidationError"


async def test_get_metric_data_is_bounded(service):
    with pytest.raises(WireError, match="exceeds the limit"):
        await service.data(metric_query("a", "CPUUtilization", period=1), EndTime=START + timedelta(days=2))
    with pytest.raises(WireError, match="must be unique"):
        await service.data(metric_query("a", "CPUUtilization"), metric_query("a", "DiskUtilization"))
    with pytest.raises(WireError, match="before EndTime"):
        await service.data(metric_query("a", "CPUUtilization"), EndTime=START)


async def test_the_page_has_the_last_minutes_of_every_series(service):
    await service.post(0, 20)
    service.plane.clock.advance(600)
    page = await series_page(service.plane.services, await service.plane.job(), {})
    created_at = (await service.plane.job()).created_at
    assert page["since_ms"] == int(created_at.timestamp() * 1000), "not before the job began"
    service.plane.clock.advance(300)
    page = await series_page(service.plane.services, await service.plane.job(), {})
    assert (page["until_ms"] - page["since_ms"], page["step_ms"]) == (15 * 60_000, 20_000)
    assert [one["name"] for one in page["series"]] == sorted(SERIES)
    assert page["fields"] == ["at_ms", "least", "greatest", "mean", "count", "last"]
    cpu = next(one for one in page["series"] if one["name"] == "host/cpu_percent")
    assert cpu["points"] == [[START_MS, 150.0, 151.0, 150.5, 20.0, 151.0]]


async def test_the_page_accepts_a_time_a_step_and_patterns(service):
    await service.post(0, 20)
    query = {"since_ms": str(START_MS), "until_ms": str(START_MS + 4_000), "step_ms": "1000", "names": "gpu-*/memory_*"}
    page = await series_page(service.plane.services, await service.plane.job(), query)
    assert [(one["name"], len(one["points"])) for one in page["series"]] == [
        ("gpu-0/memory_percent", 4),
        ("gpu-1/memory_percent", 4),
    ]
    for bad in ({"step_ms": "0"}, {"step_ms": "x"}, {"names": "["}, {"since_ms": "5", "until_ms": "4"}):
        with pytest.raises(WireError) as refused:
            await series_page(service.plane.services, await service.plane.job(), bad)
        assert refused.value.code == "ValidationException"


async def test_the_page_lists_the_existing_hosts_for_an_unknown_one(service):
    with pytest.raises(WireError, match=r"job has no host .algo-7.; it has algo-1") as refused:
        await series_page(service.plane.services, await service.plane.job(), {"host": "algo-7"})
    assert (refused.value.code, refused.value.http_status) == ("NotFound", 404)


@pytest.mark.parametrize(("span_s", "step_ms"), [(0.001, 1_000), (60, 1_000), (900, 20_000), (86_400, 1_440_000)])
def test_a_default_step_gives_about_sixty_points(span_s, step_ms):
    assert default_step_ms(int(span_s * 1000)) == step_ms


async def test_series_of_a_deleted_job_are_gone(service):
    await service.post(0, 20)
    await service.plane.stop()
    service.plane.engine.end_all_agents("job")
    await service.plane.passes(3)
    await service.plane.delete()
    assert await service.statistics("CPUUtilization") == []
    assert await service.plane.store.series.names("job") == {}


async def test_a_full_batch_after_a_long_silence_is_accepted_at_once(service):
    names = {f"rank-{rank}/cpu_percent": float(rank) for rank in range(20)}
    assert await service.post(0, 1200, columns=names) == 1200
    end_ms = START_MS + 1_200_000
    query = {"since_ms": str(START_MS), "until_ms": str(end_ms), "step_ms": "600000", "names": "rank-7/*"}
    page = await series_page(service.plane.services, await service.plane.job(), query)
    assert page["series"][0]["points"] == [[START_MS, 7.0, 8.0, 7.5, 1200.0, 8.0]]
