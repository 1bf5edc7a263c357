"""Artifacts and associations, and values of trial components."""

import math
import statistics
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.base.errors import WireError
from clary.control.store.tracking.component_metrics import summary
from clary.testing.control_plane import ControlPlane
from clary.testing.fake_clock import START
from clary.testing.wire_checks import answers_in_shape

SOURCE = {"SourceUri": "s3://b/file", "SourceTypes": [{"SourceIdType": "S3ETag", "Value": "e1"}]}
ARN = "arn:aws:sagemaker:us-west-2:000000000000:"
STATISTICS = ("Min", "Max", "Avg", "StdDev", "Last", "Count")


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        answers_in_shape(plane)
        await plane.call("sagemaker", "CreateTrialComponent", TrialComponentName="c")
        yield plane


async def artifact(plane, source=SOURCE, name="file", kind="Tracker"):
    answer = await plane.call("sagemaker", "CreateArtifact", ArtifactName=name, ArtifactType=kind, Source=source)
    return answer["ArtifactArn"]


async def refused(plane, operation, **params):
    with pytest.raises(WireError) as error:
        await plane.call("sagemaker", operation, **params)
    return error.value.code, error.value.message


async def put(plane, name, values, *, component="c", first=START, apart_s=1, steps=True):
    """Store values at equal distances in time, with their indices as steps."""
    for index, value in enumerate(values):
        item = {"MetricName": name, "Timestamp": first + timedelta(seconds=index * apart_s), "Value": value}
        if steps:
            item["Step"] = index
        await plane.call("sagemaker-metrics", "BatchPutMetrics", TrialComponentName=component, MetricData=[item])


async def get(plane, component="c", **query):
    asked = {
        "MetricName": "loss",
        "ResourceArn": f"{ARN}experiment-trial-component/{component}",
        "MetricStat": "Avg",
        "Period": "IterationNumber",
        "XAxisType": "IterationNumber",
        **query,
    }
    answer = await plane.call("sagemaker-metrics", "BatchGetMetrics", MetricQueries=[asked])
    (result,) = answer["MetricQueryResults"]
    return result


# Artifacts


async def test_an_artifact_is_identified_by_its_source(plane):
    arn = await artifact(plane)
    assert arn.startswith(f"{ARN}artifact/")
    code, words = await refused(plane, "CreateArtifact", ArtifactName="other", ArtifactType="x", Source=SOURCE)
    assert (code, "already exists" in words) == ("ValidationException", True)
    assert await artifact(plane, source={"SourceUri": "s3://b/file"}) != arn
    found = await plane.call("sagemaker", "DescribeArtifact", ArtifactArn=arn)
    assert (found["ArtifactName"], found["ArtifactType"], found["Source"]) == ("file", "Tracker", SOURCE)


async def test_artifacts_are_listed_by_uri_and_type(plane):
    first = await artifact(plane)
    second = await artifact(plane, source={"SourceUri": "s3://b/File"}, kind="Other")

    async def arns(**params):
        answer = await plane.call("sagemaker", "ListArtifacts", **params)
        return {item["ArtifactArn"] for item in answer["ArtifactSummaries"]}

    assert await arns() == {first, second}
    assert await arns(SourceUri="s3://b/file") == {first}, "case counts in keys of S3"
    assert await arns(ArtifactType="Other") == {second}
    assert await arns(ArtifactType="other") == set()


async def test_properties_are_changed_and_removed(plane):
    arn = await artifact(plane)
    await plane.call("sagemaker", "UpdateArtifact", ArtifactArn=arn, Properties={"a": "1", "b": "2"})
    await plane.call("sagemaker", "UpdateArtifact", ArtifactArn=arn, ArtifactName="new", PropertiesToRemove=["a"])
    found = await plane.call("sagemaker", "DescribeArtifact", ArtifactArn=arn)
    assert (found["ArtifactName"], found["Properties"]) == ("new", {"b": "2"})
    many = {f"p{number}": "" for number in range(30)}
    assert (await refused(plane, "UpdateArtifact", ArtifactArn=arn, Properties=many))[0] == "ValidationException"


@pytest.mark.parametrize("by", ["arn", "source"])
async def test_an_artifact_is_deleted_with_its_associations(plane, by):
    arn, component = await artifact(plane), f"{ARN}experiment-trial-component/c"
    await plane.call("sagemaker", "AddAssociation", SourceArn=component, DestinationArn=arn)
    await plane.call("sagemaker", "DeleteArtifact", **({"ArtifactArn": arn} if by == "arn" else {"Source": SOURCE}))
    assert (await refused(plane, "DescribeArtifact", ArtifactArn=arn))[0] == "ResourceNotFound"
    assert (await plane.call("sagemaker", "ListAssociations"))["AssociationSummaries"] == []
    assert (await refused(plane, "DeleteArtifact"))[0] == "ValidationException"


async def test_associations_are_listed_by_their_ends_and_types(plane):
    component = f"{ARN}experiment-trial-component/c"
    first, second = await artifact(plane), await artifact(plane, source={"SourceUri": "s3://b/2"}, kind="Model")
    await plane.call(
        "sagemaker", "AddAssociation", SourceArn=first, DestinationArn=component, AssociationType="ContributedTo"
    )
    plane.clock.advance(1)
    await plane.call(
        "sagemaker", "AddAssociation", SourceArn=component, DestinationArn=second, AssociationType="Produced"
    )

    async def edges(**params):
        answer = await plane.call("sagemaker", "ListAssociations", **params)
        return [(item["SourceArn"], item["DestinationArn"]) for item in answer["AssociationSummaries"]]

    both = [(component, second), (first, component)]
    assert await edges() == both, "newest first"
    assert await edges(SortOrder="Ascending") == both[::-1]
    assert await edges(SourceArn=component) == both[:1]
    assert await edges(DestinationArn=component) == both[1:]
    assert await edges(DestinationType="Model") == both[:1]
    assert await edges(SourceType="SageMakerTrialComponent") == both[:1]
    assert await edges(AssociationType="ContributedTo") == both[1:]
    page = await plane.call("sagemaker", "ListAssociations", MaxResults=1)
    assert await edges(MaxResults=1, NextToken=page["NextToken"]) == both[1:]


async def test_an_association_is_added_once_and_deleted_once(plane):
    arn, component = await artifact(plane), f"{ARN}experiment-trial-component/c"
    ends = {"SourceArn": component, "DestinationArn": arn}
    await plane.call("sagemaker", "AddAssociation", **ends)
    code, words = await refused(plane, "AddAssociation", **ends)
    assert (code, "already exists" in words) == ("ValidationException", True)
    await plane.call("sagemaker", "DeleteAssociation", **ends)
    assert (await refused(plane, "DeleteAssociation", **ends))[0] == "ResourceNotFound"
    missing = {"SourceArn": component, "DestinationArn": f"{ARN}artifact/none"}
    assert (await refused(plane, "AddAssociation", **missing))[0] == "ResourceNotFound"
    same = {"SourceArn": component, "DestinationArn": component}
    assert (await refused(plane, "AddAssociation", **same))[0] == "ValidationException"


# Values


async def test_values_of_a_component_are_returned_by_step(plane):
    await put(plane, "loss", [4.0, 2.0, 1.0])
    await put(plane, "loss", [6.0])
    found = await get(plane)
    assert found == {"Status": "Complete", "XAxisValues": [0, 1, 2], "MetricValues": [5.0, 2.0, 1.0]}
    assert (await get(plane, MetricStat="Last"))["MetricValues"][0] == 6.0, "the one that came last of one moment"
    assert (await get(plane, Start=1, End=1))["XAxisValues"] == [1]


@pytest.mark.parametrize("statistic", STATISTICS)
async def test_values_of_a_minute_are_aggregated(plane, statistic):
    begin = START.replace(second=0, microsecond=0) + timedelta(minutes=1)
    await put(plane, "loss", [1.0, 2.0, 6.0, 8.0], first=begin, apart_s=20, steps=False)
    found = await get(plane, Period="OneMinute", XAxisType="Timestamp", MetricStat=statistic)
    expected = {"Min": 1.0, "Max": 6.0, "Avg": 3.0, "Last": 6.0, "Count": 3.0, "StdDev": statistics.pstdev([1, 2, 6])}
    epoch = int(begin.timestamp())
    assert found["XAxisValues"] == [epoch, epoch + 60]
    assert found["MetricValues"][0] == pytest.approx(expected[statistic])
    assert (await get(plane))["XAxisValues"] == [], "values without a step have no place on an axis of steps"


async def test_a_result_that_is_too_long_is_marked_as_truncated(plane, monkeypatch):
    monkeypatch.setattr("clary.control.services.experiments.value_calls.MAX_POINTS", 2)
    await put(plane, "loss", [1.0, 2.0])
    assert (await get(plane))["Status"] == "Complete"
    await put(plane, "loss", [1.0, 2.0, 3.0])
    found = await get(plane)
    assert (found["Status"], found["XAxisValues"]) == ("Truncated", [0, 1])


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"component": "none"}, "Trial component 'none' does not exist."),
        ({"Period": "OneMinute"}, "does not go with XAxisType"),
        ({"Start": 2, "End": 1}, "Start must not lie after End"),
    ],
)
async def test_a_query_without_a_result_gives_the_reason(plane, query, words):
    found = await get(plane, **query)
    assert found["Status"] == "ValidationError"
    assert words in found["Message"]


async def test_a_component_summarises_its_metrics(plane):
    await put(plane, "loss", [1.0, math.nan, 2.0, 6.0])
    await put(plane, "accuracy", [0.5])
    metrics = (await plane.call("sagemaker", "DescribeTrialComponent", TrialComponentName="c"))["Metrics"]
    assert [item["MetricName"] for item in metrics] == ["accuracy", "loss"]
    loss = metrics[1]
    assert {name: loss[name] for name in ("Min", "Max", "Avg", "Last", "Count")} == {
        "Min": 1.0,
        "Max": 6.0,
        "Avg": 3.0,
        "Last": 6.0,
        "Count": 3,
    }
    assert loss["StdDev"] == pytest.approx(statistics.pstdev([1, 2, 6]))
    assert loss["TimeStamp"] == START + timedelta(seconds=3)
    assert metrics[0]["StdDev"] == 0.0


async def test_reported_values_of_a_job_become_its_final_metrics_too(plane):
    await plane.create()
    await put(plane, "loss", [3.0, 1.0], component="job-aws-training-job")
    arn = f"{ARN}experiment-trial-component/job-aws-training-job"
    assert (await get(plane, ResourceArn=arn))["MetricValues"] == [3.0, 1.0]
    assert [metric.value for metric in (await plane.job()).final_metrics] == [1.0]


async def test_values_are_deleted_with_their_component(plane):
    await put(plane, "loss", [1.0])
    await plane.call("sagemaker", "DeleteTrialComponent", TrialComponentName="c")
    await plane.call("sagemaker", "CreateTrialComponent", TrialComponentName="c")
    assert (await get(plane))["XAxisValues"] == []
    with pytest.raises(WireError) as error:
        await put(plane, "loss", [1.0], component="none")
    assert error.value.code == "ResourceNotFound"


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30))
def test_a_summary_equals_the_statistics_of_python(values):
    found = summary("loss", values, last_at=0)
    assert (found.least, found.greatest, found.last, found.count) == (min(values), max(values), values[-1], len(values))
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert found.deviation == pytest.approx(statistics.pstdev(values), rel=1e-6, abs=1e-3)


async def test_values_that_json_does_not_have_spoil_no_response(plane):
    await put(plane, "loss", [math.inf, 1.0, 1e200])
    found = await get(plane)
    assert found == {"Status": "Complete", "XAxisValues": [1], "MetricValues": [1.0]}
    assert (await get(plane, MetricStat="Last"))["MetricValues"] == [1.0, 1e200]
    (loss,) = (await plane.call("sagemaker", "DescribeTrialComponent", TrialComponentName="c"))["Metrics"]
    assert {"Min", "Last", "Count"} <= loss.keys()
    assert not {"Max", "Avg", "StdDev"} & loss.keys()
    assert (loss["Min"], loss["Last"], loss["Count"]) == (1.0, 1e200, 3)


@pytest.mark.parametrize("period", ["IterationNumber", "OneMinute"])
@pytest.mark.parametrize(
    ("start", "end", "count"), [(0, 2**63 - 1, 3), (-(2**63), 2**63 - 1, 3), (2**62, 2**63 - 1, 0)]
)
async def test_bounds_beyond_the_range_of_a_column_are_still_bounds(plane, period, start, end, count):
    await put(plane, "loss", [1.0, 2.0, 3.0], apart_s=60)
    axis = "IterationNumber" if period == "IterationNumber" else "Timestamp"
    found = await get(plane, Period=period, XAxisType=axis, Start=start, End=end)
    assert (found["Status"], len(found["MetricValues"])) == ("Complete", count)


@pytest.mark.parametrize("moment", [1e18, -1e18, float("nan"), float("inf")])
async def test_a_value_with_an_impossible_time_is_refused(plane, moment):
    item = {"MetricName": "loss", "Timestamp": moment, "Value": 1.0}
    with pytest.raises(WireError) as error:
        await plane.call("sagemaker-metrics", "BatchPutMetrics", TrialComponentName="c", MetricData=[item])
    assert error.value.code == "ValidationException"


async def test_metrics_of_a_training_job_are_found_by_the_job_s_arn(plane):
    await plane.create("Mixed-Case")
    await put(plane, "loss", [2.0, 1.0], component="Mixed-Case-aws-training-job", apart_s=120)
    arn = (await plane.describe("Mixed-Case"))["TrainingJobArn"]
    by_minute = {"Period": "OneMinute", "XAxisType": "Timestamp"}
    for asked in (arn, arn.lower(), arn.replace("us-west-2", "eu-west-1")):
        result = await get(plane, ResourceArn=asked, **by_minute)
        assert (result["Status"], result["MetricValues"]) == ("Complete", [2.0, 1.0])
    result = await get(plane, ResourceArn=arn, MetricName="other", **by_minute)
    assert (result["Status"], result["MetricValues"]) == ("Complete", [])
    result = await get(plane, ResourceArn=arn.replace("Mixed", "none"))
    assert (result["Status"], "none-Case" in result["Message"]) == ("ValidationError", True)


async def test_a_request_for_a_job_s_metrics_makes_no_component_and_fails_once_the_job_is_deleted(plane):
    await plane.create("job")
    arn = (await plane.describe("job"))["TrainingJobArn"]
    assert (await get(plane, ResourceArn=arn))["Status"] == "Complete"
    listed = (await plane.call("sagemaker", "ListTrialComponents"))["TrialComponentSummaries"]
    assert [item["TrialComponentName"] for item in listed] == ["c"]
    await plane.stop("job")
    await plane.passes()
    await plane.delete("job")
    result = await get(plane, ResourceArn=arn)
    assert (result["Status"], result["Message"]) == ("ValidationError", "There is no training job job.")
