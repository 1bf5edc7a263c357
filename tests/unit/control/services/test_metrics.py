"""Statistics over a job's metrics, the list of metrics, and values that a program reports itself."""

import asyncio
import math
from datetime import timedelta

import pytest

from clary.base.errors import WireError
from clary.contract.agent_protocol import CheckpointFacts, HostPhase
from clary.control.jobs.training_job import FinalMetric
from clary.control.services import metric_data, metric_lists
from clary.control.store.errors import JobNotFound
from clary.control.store.metric_values import metric_allowance
from clary.testing.control_plane import ControlPlane
from clary.testing.fake_clock import START

NAMESPACE = "/aws/sagemaker/TrainingJobs"
DIMENSIONS = [{"Name": "TrainingJobName", "Value": "job"}]
ALL = ["Average", "Sum", "Minimum", "Maximum", "SampleCount"]


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create()
        yield plane


async def put(plane, *values, name="loss"):
    """Store one value every 20 seconds from the start."""
    stored = [
        FinalMetric(name=name, value=value, at=START + timedelta(seconds=20 * index))
        for index, value in enumerate(values)
    ]
    await plane.store.add_metrics("job", stored)


async def statistics(plane, **params):
    asked = {
        "Namespace": NAMESPACE,
        "MetricName": "loss",
        "Dimensions": DIMENSIONS,
        "StartTime": START,
        "EndTime": START + timedelta(hours=1),
        "Period": 60,
        "Statistics": ALL,
        **params,
    }
    return (await plane.call("cloudwatch", "GetMetricStatistics", **asked))["Datapoints"]


async def test_statistics_are_computed_for_each_period(plane):
    await put(plane, 1.0, 2.0, 6.0, 10.0)
    first, second = await statistics(plane)
    assert first == {
        "Timestamp": START,
        "Unit": "None",
        "Average": 3.0,
        "Sum": 9.0,
        "Minimum": 1.0,
        "Maximum": 6.0,
        "SampleCount": 3.0,
    }
    assert (second["Timestamp"], second["Average"]) == (START + timedelta(minutes=1), 10.0)


async def test_only_the_requested_statistics_are_returned(plane):
    await put(plane, 1.0, 2.0)
    (point,) = await statistics(plane, Statistics=["Maximum"])
    assert point == {"Timestamp": START, "Unit": "None", "Maximum": 2.0}
    assert await statistics(plane, MetricName="other") == []
    assert await statistics(plane, Namespace="AWS/EC2") == []
    assert await statistics(plane, Dimensions=[]) == []


async def test_a_period_that_has_begun_before_the_start_counts_as_a_whole(plane):
    await put(plane, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    for seconds, counts in ((1, [3, 3]), (59, [3, 3]), (60, [3])):
        points = await statistics(plane, StartTime=START + timedelta(seconds=seconds))
        assert [point["SampleCount"] for point in points] == counts
    (data,) = (
        await plane.call(
            "cloudwatch",
            "GetMetricData",
            StartTime=START + timedelta(seconds=30),
            EndTime=START + timedelta(hours=1),
            MetricDataQueries=[
                {
                    "Id": "a",
                    "MetricStat": {
                        "Metric": {"Namespace": NAMESPACE, "MetricName": "loss", "Dimensions": DIMENSIONS},
                        "Period": 60,
                        "Stat": "Sum",
                    },
                }
            ],
        )
    )["MetricDataResults"]
    assert data["Values"] == [56.0, 7.0]


async def test_values_that_are_not_numbers_do_not_spoil_their_period(plane):
    await put(plane, 1.0, math.nan, 3.0, math.nan)
    (point,) = await statistics(plane)
    assert (point["Average"], point["SampleCount"]) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"Period": 0}, "InvalidParameterValue"),
        ({"EndTime": START}, "InvalidParameterCombination"),
        ({"Period": 1, "EndTime": START + timedelta(seconds=1441)}, "InvalidParameterCombination"),
        ({"Statistics": []}, "InvalidParameterCombination"),
        ({"ExtendedStatistics": ["p90"]}, "InvalidParameterCombination"),
    ],
)
async def test_invalid_queries_are_refused(plane, params, code):
    with pytest.raises(WireError) as error:
        await statistics(plane, **params)
    assert error.value.code == code


async def test_too_many_datapoints_are_refused_with_the_message_of_cloudwatch(plane):
    with pytest.raises(WireError, match=r"You have requested up to 3,600 datapoints, which exceeds the limit of 1,440"):
        await statistics(plane, Period=1)


async def test_metrics_of_a_job_are_listed_by_its_dimension(plane):
    await plane.hub.record_metrics("job", [FinalMetric(name=name, value=1.0, at=START) for name in ("loss", "acc")])

    async def names(**params):
        answer = await plane.call("cloudwatch", "ListMetrics", **params)
        return [metric["MetricName"] for metric in answer["Metrics"]]

    assert await names(Dimensions=DIMENSIONS) == ["loss", "acc"]
    assert await names(Dimensions=DIMENSIONS, MetricName="acc") == ["acc"]
    assert await names(Dimensions=DIMENSIONS, Namespace="AWS/EC2") == []
    assert await names(Dimensions=[{"Name": "TrainingJobName", "Value": "none"}]) == []
    assert await names(Dimensions=[{"Name": "TrainingJobName"}]) == ["loss", "acc"], "a dimension may stand alone"
    assert await names(Dimensions=[{"Name": "Host"}]) == await names(Dimensions=[{"Name": "Phase"}]) == []
    assert await names() == ["loss", "acc"]


async def test_metrics_of_all_jobs_are_paged_with_the_newest_job_first(plane):
    count = metric_lists.JOBS_OF_PAGE + 2
    for number in range(count):
        plane.clock.advance(3600)
        await plane.create(f"job-{number}")
        value = FinalMetric(name="loss", value=1.0, at=plane.clock.now())
        await plane.hub.record_metrics(f"job-{number}", [value])
    pages, token = [], {}
    while not pages or token:
        answer = await plane.call("cloudwatch", "ListMetrics", Namespace=NAMESPACE, **token)
        pages.append([metric["Dimensions"][0]["Value"] for metric in answer["Metrics"]])
        token = {"NextToken": answer["NextToken"]} if "NextToken" in answer else {}
    assert [len(page) for page in pages] == [metric_lists.JOBS_OF_PAGE, 2]
    assert [name for page in pages for name in page] == [f"job-{number}" for number in reversed(range(count))]
    recent = await plane.call("cloudwatch", "ListMetrics", RecentlyActive="PT3H")
    assert len(recent["Metrics"]) == 3
    with pytest.raises(WireError, match="Invalid NextToken") as error:
        await plane.call("cloudwatch", "ListMetrics", NextToken="forged")
    assert error.value.code == "InvalidParameterValue"


async def test_a_program_s_own_values_are_stored_and_become_final_metrics(plane):
    data = [{"MetricName": "loss", "Timestamp": START + timedelta(seconds=n), "Value": float(n)} for n in range(3)]
    answer = await plane.call(
        "sagemaker-metrics", "BatchPutMetrics", TrialComponentName="job-aws-training-job", MetricData=data
    )
    assert answer == {"Errors": []}
    (point,) = await statistics(plane)
    assert point["SampleCount"] == 3.0
    assert [(metric.name, metric.value) for metric in (await plane.job()).final_metrics] == [("loss", 2.0)]


async def test_times_in_seconds_since_1970_are_accepted(plane):
    data = [{"MetricName": "loss", "Timestamp": START.timestamp(), "Value": 1.0}]
    await plane.call("sagemaker-metrics", "BatchPutMetrics", TrialComponentName="job-aws-training-job", MetricData=data)
    assert (await plane.job()).final_metrics[0].at == START


@pytest.mark.parametrize("step", ["before", "meanwhile"])
async def test_values_for_a_job_that_does_not_exist_are_refused(plane, monkeypatch, step):
    if step == "meanwhile":

        async def gone(name, change, **options):
            raise JobNotFound(name)

        monkeypatch.setattr(plane.store, "update_job", gone)
    name = "none-aws-training-job" if step == "before" else "job-aws-training-job"
    data = [{"MetricName": "loss", "Timestamp": START, "Value": 1.0}]
    with pytest.raises(WireError) as error:
        await plane.call("sagemaker-metrics", "BatchPutMetrics", TrialComponentName=name, MetricData=data)
    assert (error.value.code, error.value.http_status) == ("ResourceNotFound", 404)


async def test_each_host_exposes_the_lag_of_its_checkpoints(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(num_hosts=2)
        await plane.passes()
        first, second = plane.agent(), plane.agent(host="algo-2")
        await second.report(HostPhase.PREPARING, checkpoints=CheckpointFacts(lag_s=10**400, dirty_bytes=5))
        for lag_s, dirty_bytes in ((0, 0), (1, 100), (9, 900), (0, 0), (0, 0)):
            facts = CheckpointFacts(lag_s=lag_s, dirty_bytes=dirty_bytes)
            await first.report(HostPhase.PREPARING, checkpoints=facts)
            plane.clock.advance(6)
        host = [{"Name": "Host", "Value": "job/algo-1"}]
        asked = {"Dimensions": host, "StartTime": START - timedelta(hours=1), "Period": 3600}
        (lag,) = await statistics(plane, **asked, MetricName="checkpoint:lag_seconds")
        assert (lag["Unit"], lag["Maximum"], lag["Minimum"]) == ("Seconds", 9.0, 0.0)
        assert lag["SampleCount"] == 3, "the first, one after ten seconds, and that it has caught up"
        (size,) = await statistics(plane, **asked, MetricName="checkpoint:lag_bytes")
        assert (size["Unit"], size["Maximum"]) == ("Bytes", 900.0)
        assert await statistics(plane, **asked, MetricName="loss") == []
        assert await statistics(plane, MetricName="checkpoint:lag_seconds") == [], "it is of hosts, not of the job"

        async def names(value):
            answer = await plane.call("cloudwatch", "ListMetrics", Dimensions=[{"Name": "Host", "Value": value}])
            return [(metric["MetricName"], metric["Dimensions"][0]["Value"]) for metric in answer["Metrics"]]

        lags = ("checkpoint:lag_seconds", "checkpoint:lag_bytes")
        assert await names("job/algo-2") == [(name, "job/algo-2") for name in lags]
        assert await names("job/algo-3") == await names("none/algo-1") == []


async def data_of(plane, *names, **params):
    queries = [
        {
            "Id": f"q{index}",
            "MetricStat": {
                "Metric": {"Namespace": NAMESPACE, "MetricName": name, "Dimensions": DIMENSIONS},
                "Period": 60,
                "Stat": "Average",
            },
        }
        for index, name in enumerate(names)
    ]
    asked = {"StartTime": START, "EndTime": START + timedelta(hours=1), "ScanBy": "TimestampAscending", **params}
    return await plane.call("cloudwatch", "GetMetricData", **{"MetricDataQueries": queries, **asked})


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 6, 100])
async def test_datapoints_of_several_metrics_are_paged_by_the_wanted_size(plane, most):
    await put(plane, *range(12), name="loss")  # four periods of three values
    await put(plane, *range(3), name="acc")
    found, pages, token = {"q0": [], "q1": [], "q2": []}, 0, {}
    while token is not None:
        answer = await data_of(plane, "loss", "nothing", "acc", MaxDatapoints=most, **token)
        assert sum(len(result["Values"]) for result in answer["MetricDataResults"]) <= most
        for result in answer["MetricDataResults"]:
            assert len(result["Timestamps"]) == len(result["Values"])
            found[result["Id"]] += result["Values"]
            is_whole = result["StatusCode"] == "Complete"
            assert is_whole == (len(found[result["Id"]]) == {"q0": 4, "q1": 0, "q2": 1}[result["Id"]])
        pages += 1
        token = {"NextToken": answer["NextToken"]} if "NextToken" in answer else None
    assert found == {"q0": [1.0, 4.0, 7.0, 10.0], "q1": [], "q2": [1.0]}
    assert pages == -(-5 // most)


async def test_metrics_that_take_too_long_are_refused(plane, monkeypatch):
    async def never(*_, **__):
        await asyncio.sleep(60)

    monkeypatch.setattr(metric_data, "MAX_WORK_S", 0.05)
    monkeypatch.setattr(plane.store.aggregates, "by_period", never)
    with pytest.raises(WireError, match=r"The 2 metrics were not computed in 0.05 s"):
        await data_of(plane, "loss", "acc")


async def test_values_beyond_the_limit_of_a_job_are_refused(plane, monkeypatch):
    monkeypatch.setattr(metric_allowance, "BURST_VALUES", 2)
    data = [{"MetricName": "loss", "Timestamp": START, "Value": 1.0}] * 3
    with pytest.raises(WireError, match="may add 2 values of metrics at once") as error:
        await plane.call(
            "sagemaker-metrics", "BatchPutMetrics", TrialComponentName="job-aws-training-job", MetricData=data
        )
    assert error.value.code == "ThrottlingException"
    assert await statistics(plane) == []


async def test_a_token_of_another_query_or_another_account_is_refused(plane):
    await put(plane, *range(12))
    token = (await data_of(plane, "loss", MaxDatapoints=1))["NextToken"]
    for wrong in ({"NextToken": "x"}, {"NextToken": token, "ScanBy": "TimestampDescending"}):
        with pytest.raises(WireError) as error:
            await data_of(plane, "loss", **wrong)
        assert error.value.code == "InvalidNextToken"
    query = {"Id": "q", "AccountId": "123456789012", "MetricStat": {"Metric": {}, "Period": 60, "Stat": "Sum"}}
    with pytest.raises(WireError, match="AccountId of query 'q' is 123456789012: expected 000000000000"):
        await data_of(plane, MetricDataQueries=[query])


async def test_another_account_has_no_metrics(plane):
    await put(plane, 1.0)
    assert await plane.call("cloudwatch", "ListMetrics", OwningAccount="123456789012") == {"Metrics": []}
