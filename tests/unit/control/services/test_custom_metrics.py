"""PutMetricData: a script's values are stored with its job and read back by their own names, never by another job."""

import time
import tracemalloc
from datetime import timedelta

import pytest

from clary.base.errors import NOTHING_CHANGED, Fault, StoreError, WireError
from clary.control.jobs.training_job import FinalMetric
from clary.control.permissions.grants import Grants
from clary.control.services import custom_metrics
from clary.control.services.call import Call
from clary.control.services.dispatch import dispatch
from clary.control.store.metric_values import metric_allowance
from clary.testing.control_plane import ControlPlane
from clary.testing.fake_clock import START

GRANTS = Grants(job_name="job", job_arn="arn", job_id="id")
PHASE = [{"Name": "phase", "Value": "val"}]
JOB = [{"Name": "TrainingJobName", "Value": "job"}]


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create()
        await plane.create("other")
        yield plane


async def call(plane, operation, *, grants=GRANTS, **params):
    asked = Call(services=plane.services, params=params, region="r", access_key_id="K", request_id="R", grants=grants)
    return await dispatch("cloudwatch", operation, asked)


async def put(plane, *data, grants=GRANTS, namespace="My/App"):
    data = [{"MetricName": "loss", **datum} for datum in data]
    await call(plane, "PutMetricData", grants=grants, Namespace=namespace, MetricData=data)


async def means(plane, *, grants=GRANTS, dimensions=(), **params):
    answer = await call(
        plane,
        "GetMetricStatistics",
        grants=grants,
        **{
            "Namespace": "My/App",
            "MetricName": "loss",
            "Dimensions": list(dimensions),
            "StartTime": START - timedelta(hours=1),
            "EndTime": START + timedelta(hours=1),
            "Period": 60,
            "Statistics": ["Average"],
            **params,
        },
    )
    return [point["Average"] for point in answer["Datapoints"]]


async def refusal(plane, *data, **options):
    with pytest.raises(WireError) as error:
        await put(plane, *data, **options)
    return error.value.code, error.value.message


async def test_values_of_a_script_are_stored_with_its_job_and_shown_with_the_other_metrics(plane):
    await put(plane, {"Value": 2.0}, {"Value": 5.0, "Dimensions": PHASE})
    await put(plane, {"Values": [1.0, 3.0], "Counts": [3, 1], "MetricName": "time"})
    assert (await means(plane), await means(plane, dimensions=PHASE)) == ([2.0], [5.0])
    assert await means(plane, MetricName="time") == [1.5]
    curves = await plane.store.curves.curves("job", names=None, num_points=10)
    assert sorted(curves) == ["My/App/loss", "My/App/loss [phase=val]", "My/App/time"]


async def test_the_owner_names_the_job_by_its_dimension(plane):
    await put(plane, {"Value": 2.0, "Dimensions": JOB}, grants=None)
    assert await means(plane, grants=None, dimensions=JOB) == [2.0]
    assert (await refusal(plane, {"Value": 1.0}, grants=None))[0] == "InvalidParameterValue"
    gone = [{"Name": "TrainingJobName", "Value": "gone"}]
    assert "no training job gone" in (await refusal(plane, {"Value": 1.0, "Dimensions": gone}, grants=None))[1]


async def test_the_owner_reads_a_metric_of_all_jobs_by_the_dimensions_it_was_put_with(plane):
    await put(plane, {"Value": 2.0, "Unit": "Count"}, {"Value": 9.0, "Dimensions": PHASE})
    await put(plane, {"Value": 4.0, "Dimensions": [{"Name": "TrainingJobName", "Value": "other"}]}, grants=None)
    assert await means(plane, grants=None) == [3.0]
    assert await means(plane, grants=None, dimensions=PHASE) == [9.0]
    assert await means(plane, grants=None, dimensions=JOB) == await means(plane) == [2.0]
    assert await means(plane, grants=None, MetricName="none") == await means(plane, grants=None, Namespace="My") == []
    await put(plane, {"Value": 6.0, "Unit": "Count", "MetricName": "time"})
    assert await means(plane, grants=None, MetricName="time", Unit="Count") == [6.0]
    assert await means(plane, grants=None, MetricName="time", Unit="Bytes") == []


async def test_metrics_of_all_namespaces_are_listed_without_a_namespace(plane):
    await plane.hub.record_metrics("job", [FinalMetric(name="train/loss", value=1.0, at=START)])
    await put(plane, {"Value": 2.0, "Dimensions": PHASE}, {"Value": 1.0, "MetricName": "a/b"})
    await put(plane, {"Value": 2.0}, namespace="My")
    for grants in (None, GRANTS):
        listed = await call(plane, "ListMetrics", grants=grants, Dimensions=JOB)
        assert [(metric["Namespace"], metric["MetricName"]) for metric in listed["Metrics"]] == [
            ("/aws/sagemaker/TrainingJobs", "train/loss"),
            ("My", "loss"),
            ("My/App", "a/b"),
            ("My/App", "loss"),
        ]
    assert listed["Metrics"][3]["Dimensions"] == [*JOB, *PHASE]
    by_phase = await call(plane, "ListMetrics", grants=None, Dimensions=PHASE)
    assert [metric["Namespace"] for metric in by_phase["Metrics"]] == ["My/App"]
    (named,) = (await call(plane, "ListMetrics", grants=None, Namespace="My"))["Metrics"]
    assert (named["Namespace"], named["MetricName"]) == ("My", "loss")


async def test_a_job_has_a_limited_number_of_namespaces(plane, monkeypatch):
    monkeypatch.setattr(custom_metrics, "MAX_NAMESPACES", 1)
    await put(plane, {"Value": 2.0}, namespace="A")
    await put(plane, {"Value": 2.0}, namespace="B")
    job = await plane.job()
    assert job.metric_namespaces == ("A",)
    assert job.warnings == (custom_metrics.MANY_NAMESPACES,)


async def test_a_job_reads_and_lists_no_metrics_of_another_job(plane):
    others = [{"Name": "TrainingJobName", "Value": "other"}]
    await put(plane, {"Value": 7.0, "Dimensions": others}, grants=None)
    for dimensions in (others, [{"Name": "Host", "Value": "other/algo-1"}]):
        assert await means(plane, dimensions=dimensions) == []
        listed = await call(plane, "ListMetrics", Namespace="My/App", Dimensions=dimensions)
        assert listed == {"Metrics": []}


async def test_stored_metrics_are_listed_with_their_dimensions(plane):
    await put(plane, {"Value": 2.0, "Dimensions": PHASE}, {"Value": 1.0, "MetricName": "time"})
    listed = await call(plane, "ListMetrics", Namespace="My/App", MetricName="loss")
    assert listed["Metrics"] == [{"Namespace": "My/App", "MetricName": "loss", "Dimensions": [*JOB, *PHASE]}]


@pytest.mark.parametrize("name", ["loss", "loss[0]", "loss [0]", "a=b", "x]"])
@pytest.mark.parametrize(
    "dimensions", [{}, {"phase": "a, b"}, {"phase": "lr=0.1", "set": "x, y, z"}, {"a": "b [c]", "d": "]"}, {"e": ""}]
)
async def test_names_and_values_with_brackets_and_commas_are_listed_as_they_were_put(plane, name, dimensions):
    sent = [{"Name": key, "Value": value} for key, value in dimensions.items()]
    await put(plane, {"MetricName": name, "Value": 1.0, "Dimensions": sent})
    (listed,) = (await call(plane, "ListMetrics", Namespace="My/App"))["Metrics"]
    assert (listed["MetricName"], listed["Dimensions"]) == (name, [*JOB, *sent])


async def test_a_call_that_names_a_missing_job_stores_no_value_of_any_job(plane):
    data = [
        {"Value": 1.0, "Dimensions": [{"Name": "TrainingJobName", "Value": name}]} for name in ("job", "other", "gone")
    ]
    for sent in (data, data[::-1]):
        assert "no training job gone" in (await refusal(plane, *sent, grants=None))[1]
    assert await means(plane, grants=None, dimensions=JOB) == []
    await put(plane, *data[:2], grants=None)
    assert await means(plane, grants=None, dimensions=JOB) == [1.0]


@pytest.mark.parametrize(
    ("datum", "code"),
    [
        ({}, "InvalidParameterCombination"),
        ({"Value": 1.0, "Values": [1.0]}, "InvalidParameterCombination"),
        ({"Value": float("nan")}, "InvalidParameterValue"),
        ({"Values": [1.0], "Counts": [1.0, 2.0]}, "InvalidParameterValue"),
        ({"Values": [1.0], "Counts": [1e300]}, "InvalidParameterValue"),
        ({"Values": [1.0], "Counts": [0.5]}, "InvalidParameterValue"),
        ({"Values": [1.0] * 2, "Counts": [10_000.0] * 2}, "InvalidParameterValue"),
        ({"Value": 1.0, "Timestamp": START - timedelta(days=15)}, "InvalidParameterValue"),
        ({"Value": 1.0, "Timestamp": START + timedelta(hours=3)}, "InvalidParameterValue"),
        (
            {"StatisticValues": {"SampleCount": 2.0, "Sum": 3.0, "Minimum": 1.0, "Maximum": 2.0}},
            "InvalidParameterValue",
        ),
        (
            {"StatisticValues": {"SampleCount": 2.0, "Sum": 3.0, "Minimum": 1.0, "Maximum": 1.0}},
            "InvalidParameterValue",
        ),
        (
            {"StatisticValues": {"SampleCount": 0.5, "Sum": 0.5, "Minimum": 1.0, "Maximum": 1.0}},
            "InvalidParameterValue",
        ),
    ],
)
async def test_data_that_can_not_be_stored_are_refused_as_a_whole(plane, datum, code):
    assert (await refusal(plane, {"Value": 1.0}, datum))[0] == code
    assert await means(plane) == []


@pytest.mark.parametrize(
    "data",
    [
        [{"Values": [1.0] * 60_000, "Counts": [15_000.0] * 60_000}],
        [{"Values": [1.0] * 150, "Counts": [15_000.0] * 150}] * 400,
    ],
)
async def test_a_call_with_too_many_values_is_refused_before_they_are_counted_out(plane, data):
    tracemalloc.start()
    begin = time.process_time()
    code, message = await refusal(plane, *data)
    took_s, (_, peak_bytes) = time.process_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (code, "150" in message or "15000" in message) == ("InvalidParameterValue", True)
    assert took_s < 5.0
    assert peak_bytes < 10_000_000
    assert await means(plane) == []


async def test_a_datum_has_150_values_at_most(plane):
    assert "150" in (await refusal(plane, {"Values": [1.0] * 151}))[1]
    await put(plane, {"Values": [1.0] * 150, "Counts": [100.0] * 150})
    assert await means(plane, Statistics=["Average"]) == [1.0]


async def test_values_that_come_too_fast_are_refused_until_later(plane, monkeypatch):
    monkeypatch.setattr(metric_allowance, "BURST_VALUES", 10)
    await put(plane, {"Values": [1.0], "Counts": [7]})
    code, message = await refusal(plane, {"Values": [2.0], "Counts": [4]})
    assert (code, "10 values" in message) == ("ThrottlingException", True)
    await put(plane, {"Values": [1.0], "Counts": [3]})
    assert (await refusal(plane, {"Value": 2.0}))[0] == "ThrottlingException"
    await put(plane, {"Value": 2.0, "Dimensions": [{"Name": "TrainingJobName", "Value": "other"}]}, grants=None)
    assert await means(plane) == [1.0]
    plane.clock.advance(0.1)
    await put(plane, {"Value": 1.0})
    plane.clock.advance(86_400)
    await put(plane, {"Values": [1.0], "Counts": [10]})


async def test_a_job_has_a_limited_number_of_metrics(plane, monkeypatch):
    monkeypatch.setattr(metric_allowance, "MAX_METRICS", 2)
    await put(plane, {"Value": 1.0}, {"Value": 1.0, "MetricName": "time"})
    code, message = await refusal(plane, {"Value": 2.0, "MetricName": "third"})
    assert (code, "2 metrics" in message) == ("LimitExceeded", True)
    await put(plane, {"Value": 1.0}, {"Value": 3.0, "MetricName": "time"})
    assert await means(plane, MetricName="time") == [2.0]


async def test_of_two_jobs_neither_gets_values_if_one_may_not(plane, monkeypatch):
    monkeypatch.setattr(metric_allowance, "BURST_VALUES", 3)
    of_other = [{"Name": "TrainingJobName", "Value": "other"}]
    await put(plane, {"Values": [1.0], "Counts": [2], "Dimensions": of_other}, grants=None)
    of_job = [{"Name": "TrainingJobName", "Value": "job"}]
    full = {"Values": [1.0], "Counts": [3], "Dimensions": of_job}
    more = {"Values": [1.0], "Counts": [2], "Dimensions": of_other}
    with pytest.raises(WireError, match="Rate exceeded"):
        await put(plane, full, more, grants=None)
    assert await means(plane) == []
    await put(plane, full, grants=None)


async def test_the_name_of_a_metric_has_a_limited_length(plane):
    long = [{"Name": f"d{number}", "Value": "v" * 200} for number in range(6)]
    assert "1024 characters" in (await refusal(plane, {"Value": 1.0, "Dimensions": long}))[1]
    await put(plane, {"Value": 1.0, "Dimensions": long[:4]})


async def test_no_value_is_read_one_by_one_for_statistics(plane, monkeypatch):
    async def read(*_):
        raise AssertionError("all values were read")

    monkeypatch.setattr(plane.store, "query_metrics", read)
    await put(plane, {"Values": [1.0, 4.0], "Counts": [2, 1]})
    assert await means(plane) == await means(plane, grants=None) == [2.0]


async def test_metrics_are_listed_in_pages_of_500(plane, monkeypatch):
    names = [f"m{number:04}" for number in range(1200)]
    await put(plane, *({"MetricName": name, "Value": 1.0} for name in names))
    await put(plane, {"Value": 1.0, "Dimensions": [{"Name": "TrainingJobName", "Value": "other"}]}, grants=None)
    for grants, params, more in ((GRANTS, {"Namespace": "My/App"}, 0), (None, {"Dimensions": JOB}, 0), (None, {}, 1)):
        sizes, seen, token = [], [], {}
        while not sizes or token:
            plane.clock.advance(60)
            answer = await call(plane, "ListMetrics", grants=grants, RecentlyActive="PT3H", **params, **token)
            sizes.append(len(answer["Metrics"]))
            seen += [metric["MetricName"] for metric in answer["Metrics"]]
            token = {"NextToken": answer["NextToken"]} if "NextToken" in answer else {}
        assert sizes == [500, 500, 200 + more]
        assert sorted(seen) == sorted(["loss"] * more + names)
    first = await call(plane, "ListMetrics", Namespace="My/App")
    with pytest.raises(WireError, match="Invalid NextToken"):
        await call(plane, "ListMetrics", Namespace="Other", NextToken=first["NextToken"])


async def test_a_statistic_set_of_equal_values_counts_each_value(plane):
    same = {"StatisticValues": {"SampleCount": 3.0, "Sum": 0.3, "Minimum": 0.1, "Maximum": 0.1}}
    await put(plane, same, {"Value": 0.5})
    assert await means(plane) == [pytest.approx(0.2)]


@pytest.mark.parametrize("namespace", ["AWS/EC2", "/aws/sagemaker/TrainingJobs"])
async def test_namespaces_of_the_platform_can_not_be_written(plane, namespace):
    assert "reserved" in (await refusal(plane, {"Value": 1.0}, namespace=namespace))[1]


async def test_units_are_stored_with_the_job_and_returned(plane):
    await put(plane, {"Value": 2.0, "Unit": "Seconds"}, {"Value": 3.0, "Dimensions": PHASE, "Unit": "Count"})
    asked = {
        "Namespace": "My/App",
        "MetricName": "loss",
        "Period": 60,
        "Statistics": ["Sum"],
        "StartTime": START - timedelta(hours=1),
        "EndTime": START + timedelta(hours=1),
    }
    for dimensions, unit in (([], "Seconds"), (PHASE, "Count")):
        answer = await call(plane, "GetMetricStatistics", **asked, Dimensions=dimensions)
        assert [point["Unit"] for point in answer["Datapoints"]] == [unit]
    assert await means(plane, Unit="Seconds") == [2.0]
    assert await means(plane, Unit="Bytes") == [], "there is nothing in another unit"
    stat = {"Metric": {"Namespace": "My/App", "MetricName": "loss"}, "Period": 60, "Stat": "Sum"}
    span = {name: asked[name] for name in ("StartTime", "EndTime")}
    for unit, values in (("Seconds", [2.0]), ("Bytes", [])):
        query = {"Id": "q", "MetricStat": {**stat, "Unit": unit}}
        answer = await call(plane, "GetMetricData", MetricDataQueries=[query], **span)
        assert answer["MetricDataResults"][0]["Values"] == values
    await put(plane, {"Value": 2.0})
    assert (await plane.job()).metric_units["My/App/loss"] == "None", "the last one counts"


async def test_units_beyond_the_limit_are_dropped_with_a_warning(plane, monkeypatch):
    monkeypatch.setattr(custom_metrics, "MAX_UNITS", 1)
    await put(plane, {"Value": 2.0, "Unit": "Seconds"}, {"Value": 2.0, "Unit": "Bytes", "MetricName": "other"})
    job = await plane.job()
    assert job.metric_units == {"My/App/loss": "Seconds"}
    assert any("units of the first" in sentence for sentence in job.warnings)


async def test_a_resolution_is_1_or_60_and_values_keep_their_times(plane):
    await put(plane, {"Value": 1.0, "StorageResolution": 1}, {"Value": 2.0, "StorageResolution": 60})
    assert "must be 1 or 60" in (await refusal(plane, {"Value": 1.0, "StorageResolution": 30}))[1]


async def test_dimensions_of_stored_metrics_are_filters_of_the_list(plane):
    await put(plane, {"Value": 2.0, "Dimensions": PHASE}, {"Value": 1.0})

    async def count(**params):
        return len((await call(plane, "ListMetrics", Namespace="My/App", **params))["Metrics"])

    assert await count() == 2
    assert await count(Dimensions=PHASE) == await count(Dimensions=[{"Name": "phase"}]) == 1
    assert await count(Dimensions=[{"Name": "phase", "Value": "train"}]) == 0
    assert await count(grants=None) == 2, "the owner sees those of all jobs"


async def test_more_metrics_than_one_response_of_curves_has_are_listed(plane):
    await put(plane, *({"MetricName": f"m{number}", "Value": 1.0} for number in range(150)))
    await put(plane, {"Value": 1.0}, namespace="MyXApp")
    assert len((await call(plane, "ListMetrics", Namespace="My/App"))["Metrics"]) == 150


async def test_a_refusal_after_a_part_was_stored_does_not_let_the_same_request_in_again(plane, monkeypatch):
    """A client that may send the same bytes again would store the values of the first job twice."""
    add = plane.services.store.add_metrics
    refusals = {
        "job": None,
        "other": StoreError("no room", details={NOTHING_CHANGED: True}, fault=Fault.INFRASTRUCTURE),
    }

    async def refuse(name, values):
        if (refused := refusals[name]) is not None:
            raise refused
        await add(name, values)

    monkeypatch.setattr(plane.services.store, "add_metrics", refuse)
    of_job, of_other = {"Value": 1.0, "Dimensions": JOB}, {"Value": 2.0, "Dimensions": [{**JOB[0], "Value": "other"}]}
    with pytest.raises(WireError, match="no room") as refused:
        await put(plane, of_job, of_other, grants=None)
    assert NOTHING_CHANGED not in refused.value.details
    with pytest.raises(WireError, match="no room") as refused:
        await put(plane, of_other, grants=None)
    assert refused.value.details[NOTHING_CHANGED]
