"""Create, describe, list, stop and delete tuning jobs, with responses parsed by botocore, and refusals as by AWS."""

import json
from pathlib import Path

import pytest
from tuning_runs import METRIC, RANGES, RESOURCES, TuningRuns, definition_of, request_of

from clary.base.errors import WireError
from clary.testing.control_plane import UNKNOWN_IMAGE, ControlPlane

# Requests as SDK v2 and v3 sent them.
RECORDED = sorted(
    (Path(__file__).parents[4] / "assets/requests").glob("*.CreateHyperParameterTuningJob.json"),
)
OBJECTIVE = {"Type": "Minimize", "MetricName": METRIC}


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


@pytest.fixture
def runs(plane):
    return TuningRuns(plane)


async def refusal(call):
    with pytest.raises(WireError) as refused:
        await call
    return refused.value.code, refused.value.message


def names_of(answer):
    return [row["HyperParameterTuningJobName"] for row in answer["HyperParameterTuningJobSummaries"]]


def jobs_of(answer):
    return [row["TrainingJobName"] for row in answer["TrainingJobSummaries"]]


def with_all_lists(config):
    """Return a configuration whose ranges have a list of each kind, as clients of answers expect."""
    kinds = ("IntegerParameterRanges", "ContinuousParameterRanges", "CategoricalParameterRanges")
    return {**config, "ParameterRanges": {**{kind: [] for kind in kinds}, **config["ParameterRanges"]}}


async def all_rows(runs, operation, member, **params):
    found, token = [], {}
    for _ in range(50):
        answer = await runs.call(operation, **params, **token)
        found += answer[member]
        if "NextToken" not in answer:
            return found
        token = {"NextToken": answer["NextToken"]}
    raise AssertionError("paging does not end")


# Create


async def test_a_created_tuning_job_is_stored_and_has_no_trials_yet(plane, runs):
    answer = await runs.call("CreateHyperParameterTuningJob", **request_of())
    arn = "arn:aws:sagemaker:us-west-2:000000000000:hyper-parameter-tuning-job/tuned"
    assert answer["HyperParameterTuningJobArn"] == arn
    described = await runs.describe()
    assert described["HyperParameterTuningJobArn"] == arn
    assert described["HyperParameterTuningJobStatus"] == "InProgress"
    assert set(described["TrainingJobStatusCounters"].values()) == {0}
    assert set(described["ObjectiveStatusCounters"].values()) == {0}
    assert not {"BestTrainingJob", "HyperParameterTuningEndTime", "FailureReason"} & set(described)
    assert await runs.trials() == []


def test_the_recorded_requests_are_found():
    assert len(RECORDED) == 3


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.partition(".")[0])
async def test_requests_of_the_sdks_are_accepted_described_and_reach_the_training_jobs(plane, runs, path):
    request = json.loads(
        path.read_text().replace("s3://b/c", "s3://bucket/c")
    )  # the name of a bucket has at least three characters
    request["TrainingJobDefinition"]["AlgorithmSpecification"]["TrainingImage"] = (
        "generic:1"  # an image that exists here
    )
    await runs.call("CreateHyperParameterTuningJob", **request)
    await runs.look()
    name, definition = request["HyperParameterTuningJobName"], request["TrainingJobDefinition"]
    described = await runs.describe(name)
    assert described["HyperParameterTuningJobConfig"] == with_all_lists(request["HyperParameterTuningJobConfig"])
    told = described["TrainingJobDefinition"]
    for member, value in definition.items():
        if member not in ("StaticHyperParameters", "HyperParameterTuningResourceConfig", "ResourceConfig"):
            assert told[member] == value, member
    limits = request["HyperParameterTuningJobConfig"]["ResourceLimits"]
    names = await runs.open_names(name)
    assert len(names) == limits["MaxParallelTrainingJobs"]
    ranges = request["HyperParameterTuningJobConfig"]["ParameterRanges"]
    tuned = {one["Name"] for kind in ranges.values() for one in kind}
    own = definition.get("ResourceConfig") or definition["HyperParameterTuningResourceConfig"]
    for job in names:
        trial = (await plane.job(job)).request
        assert definition["StaticHyperParameters"].items() <= trial["HyperParameters"].items()
        assert tuned <= set(trial["HyperParameters"])
        assert own.items() <= trial["ResourceConfig"].items()
        assert trial["InputDataConfig"] == definition["InputDataConfig"]


async def test_a_name_can_be_used_once(runs):
    await runs.create()
    again = runs.call("CreateHyperParameterTuningJob", **request_of(most=9))
    assert await refusal(again) == (
        "ResourceInUse",
        "A hyperparameter tuning job with the name, tuned, already exists. Choose a different name.",
    )


async def test_of_two_concurrent_creations_of_a_name_one_succeeds(plane, runs, monkeypatch):
    async def nothing(name):
        return None

    await runs.call("CreateHyperParameterTuningJob", **request_of())
    monkeypatch.setattr(plane.store.tuning, "get", nothing)
    assert (await refusal(runs.call("CreateHyperParameterTuningJob", **request_of())))[0] == "ResourceInUse"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config": {"ParameterRanges": None}}, "At least one hyperparameter range"),
        ({"most": None}, "would have no end"),
        ({"parallel": 9}, "is more than MaxNumberOfTrainingJobs 4"),
        ({"TrainingJobDefinition": None}, "Give either TrainingJobDefinition or TrainingJobDefinitions"),
        ({"config": {"Strategy": "Grid"}}, "categorical ranges alone"),
        ({"TrainingJobDefinition": definition_of(ResourceConfig=None)}, "Give either ResourceConfig"),
    ],
)
async def test_an_invalid_request_is_refused_and_not_stored(runs, changes, words):
    code, message = await refusal(runs.call("CreateHyperParameterTuningJob", **request_of(**changes)))
    assert code == "ValidationException"
    assert words in message
    assert names_of(await runs.call("ListHyperParameterTuningJobs")) == []


async def test_a_definition_that_no_training_job_could_have_is_refused_at_once(plane, runs):
    image = {**definition_of()["AlgorithmSpecification"], "TrainingImage": UNKNOWN_IMAGE}
    plane.objects.missing.add("absent")
    channel = {
        "ChannelName": "train",
        "DataSource": {
            "S3DataSource": {
                "S3DataType": "S3Prefix",
                "S3Uri": "s3://absent/x",
                "S3DataDistributionType": "ShardedByS3Key",
            }
        },
    }
    many = {**RESOURCES, "InstanceCount": 50}
    for members, code, words in (
        ({"AlgorithmSpecification": image}, "ValidationException", "no environment stands for"),
        ({"InputDataConfig": [channel]}, "ValidationException", "No S3 objects found"),
        ({"ResourceConfig": many}, "ResourceLimitExceeded", "50"),
    ):
        definition = definition_of(**members)
        call = runs.call("CreateHyperParameterTuningJob", **request_of(TrainingJobDefinition=definition))
        found = await refusal(call)
        assert found[0] == code
        assert words in found[1]
    assert names_of(await runs.call("ListHyperParameterTuningJobs")) == []


async def test_each_of_several_definitions_is_checked(runs):
    image = {**definition_of()["AlgorithmSpecification"], "TrainingImage": UNKNOWN_IMAGE}
    own = {"TuningObjective": OBJECTIVE, "HyperParameterRanges": RANGES}
    definitions = [
        definition_of(DefinitionName="good", **own),
        definition_of(DefinitionName="bad", AlgorithmSpecification=image, **own),
    ]
    request = request_of(
        TrainingJobDefinition=None,
        TrainingJobDefinitions=definitions,
        config={"HyperParameterTuningJobObjective": None, "ParameterRanges": None},
    )
    code, message = await refusal(runs.call("CreateHyperParameterTuningJob", **request))
    assert (code, UNKNOWN_IMAGE in message) == ("ValidationException", True)


async def test_tags_are_checked_and_stored(plane, runs):
    doubled = [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]
    assert (await refusal(runs.create(Tags=doubled)))[0] == "ValidationException"
    arn = await runs.create(Tags=[{"Key": "team", "Value": "x"}])
    assert (await runs.call("ListTags", ResourceArn=arn))["Tags"] == [{"Key": "team", "Value": "x"}]
    await runs.call("AddTags", ResourceArn=arn, Tags=[{"Key": "stage", "Value": "y"}])
    await runs.call("DeleteTags", ResourceArn=arn, TagKeys=["team"])
    assert (await runs.call("ListTags", ResourceArn=arn))["Tags"] == [{"Key": "stage", "Value": "y"}]
    assert (await refusal(runs.call("ListTags", ResourceArn=arn + "x")))[0] == "ValidationException"


# Describe


async def test_describe_has_the_original_request_and_the_progress(plane, runs):
    await runs.create(most=5)
    first, second = await runs.open_names()
    await runs.finish(first, 3.0, 2.0)
    await runs.finish(second, exit_code=1)
    answer = await runs.describe()
    config = with_all_lists(request_of(most=5)["HyperParameterTuningJobConfig"])
    assert answer["HyperParameterTuningJobConfig"] == {**config, "TrainingJobEarlyStoppingType": "Off"}
    definition = answer["TrainingJobDefinition"]
    for name, value in definition_of().items():
        if name != "StaticHyperParameters":
            assert definition[name] == value
    assert definition["StaticHyperParameters"] == {"epochs": "5", "_tuning_objective_metric": METRIC}
    assert answer["TrainingJobStatusCounters"] == {
        "Completed": 1,
        "InProgress": 2,
        "RetryableError": 0,
        "NonRetryableError": 1,
        "Stopped": 0,
    }
    assert answer["ObjectiveStatusCounters"] == {"Succeeded": 1, "Pending": 2, "Failed": 1}
    best = answer["BestTrainingJob"]
    assert best["TrainingJobName"] == first
    assert best["TunedHyperParameters"] == (await runs.trials())[0].parameters
    assert best["FinalHyperParameterTuningJobObjectiveMetric"] == {**OBJECTIVE, "Value": 2.0}
    assert best["ObjectiveStatus"] == "Succeeded"
    assert best["TrainingEndTime"] >= best["TrainingStartTime"]
    assert answer["ConsumedResources"]["RuntimeInSeconds"] == 2


async def test_describe_of_an_ended_tuning_job(runs):
    await runs.create(most=2)
    await runs.finish_all()
    answer = await runs.describe()
    assert answer["HyperParameterTuningJobStatus"] == "Completed"
    assert answer["HyperParameterTuningEndTime"] == answer["LastModifiedTime"] >= answer["CreationTime"]
    assert answer["TuningJobCompletionDetails"] == {"NumberOfTrainingJobsObjectiveNotImproving": 1}


@pytest.mark.parametrize(
    "operation",
    [
        "DescribeHyperParameterTuningJob",
        "StopHyperParameterTuningJob",
        "DeleteHyperParameterTuningJob",
        "ListTrainingJobsForHyperParameterTuningJob",
    ],
)
async def test_a_missing_tuning_job_gives_resource_not_found(runs, operation):
    assert await refusal(runs.call(operation, HyperParameterTuningJobName="nobody")) == (
        "ResourceNotFound",
        "Amazon SageMaker can't find a tuning job called nobody. Type another name.",
    )


# List


async def test_tuning_jobs_are_listed_by_name_with_their_counters(plane, runs):
    for name in ("b", "c", "a"):
        await runs.call("CreateHyperParameterTuningJob", **request_of(name))
        plane.clock.advance(60)
    answer = await runs.call("ListHyperParameterTuningJobs")
    assert names_of(answer) == ["a", "b", "c"]
    assert "NextToken" not in answer
    row = answer["HyperParameterTuningJobSummaries"][0]
    assert (row["Strategy"], row["HyperParameterTuningJobStatus"]) == ("Random", "InProgress")
    assert row["ResourceLimits"] == {"MaxNumberOfTrainingJobs": 4, "MaxParallelTrainingJobs": 2}
    newest = await runs.call("ListHyperParameterTuningJobs", SortBy="CreationTime", SortOrder="Descending")
    assert names_of(newest) == ["a", "c", "b"]


async def test_lists_are_filtered_and_paged(plane, runs):
    moments = []
    for number in range(12):
        moments.append(plane.clock.now())
        await runs.call("CreateHyperParameterTuningJob", **request_of(f"t-{number:02d}"))
        plane.clock.advance(60)
    await runs.stop("t-03")
    listed = "ListHyperParameterTuningJobs"
    assert len(names_of(await runs.call(listed))) == 10
    rows = await all_rows(runs, listed, "HyperParameterTuningJobSummaries", MaxResults=5)
    assert [row["HyperParameterTuningJobName"] for row in rows] == [f"t-{number:02d}" for number in range(12)]
    assert names_of(await runs.call(listed, NameContains="-1")) == ["t-10", "t-11"]
    assert names_of(await runs.call(listed, StatusEquals="Stopped")) == ["t-03"]
    assert names_of(await runs.call(listed, StatusEquals="Failed")) == []
    assert names_of(await runs.call(listed, CreationTimeAfter=moments[10])) == ["t-11"]
    assert names_of(await runs.call(listed, CreationTimeBefore=moments[1])) == ["t-00"]
    assert names_of(await runs.call(listed, LastModifiedTimeAfter=moments[11])) == ["t-03"]
    assert (await refusal(runs.call(listed, NextToken="x")))[0] == "ValidationException"


async def test_training_jobs_of_a_tuning_job_are_listed_in_every_order(runs):
    await runs.create(most=5, parallel=2)
    values = {1: (3.0,), 2: (1.0,), 3: (2.0,)}
    for number in (1, 2, 3):
        trial = (await runs.trials())[number - 1]
        await runs.finish(trial.job_name, *values[number])
    names = [trial.job_name for trial in await runs.trials()]
    by_number = {name: int(name.split("-")[1]) for name in names}

    async def listed(**params):
        rows = await all_rows(
            runs,
            "ListTrainingJobsForHyperParameterTuningJob",
            "TrainingJobSummaries",
            HyperParameterTuningJobName="tuned",
            MaxResults=2,
            **params,
        )
        return [by_number[row["TrainingJobName"]] for row in rows]

    assert await listed() == [1, 2, 3, 4, 5]
    assert await listed(SortBy="CreationTime", SortOrder="Descending") == [5, 4, 3, 2, 1]
    assert await listed(SortBy="FinalObjectiveMetricValue") == [2, 3, 1]
    assert await listed(SortBy="FinalObjectiveMetricValue", SortOrder="Descending") == [1, 3, 2]
    assert await listed(SortBy="Status") == [1, 2, 3, 4, 5]
    assert await listed(StatusEquals="InProgress") == [4, 5]
    assert await listed(StatusEquals="Completed") == [1, 2, 3]
    assert await listed(StatusEquals="Failed") == []


async def test_summaries_of_training_jobs_have_the_known_members(plane, runs):
    await runs.create(most=4, parallel=4)
    good, bad, running, waiting = await runs.open_names()
    await runs.finish(good, 1.5)
    await runs.finish(bad, exit_code=3)
    await runs.run(running)
    answer = await runs.call("ListTrainingJobsForHyperParameterTuningJob", HyperParameterTuningJobName="tuned")
    rows = {row["TrainingJobName"]: row for row in answer["TrainingJobSummaries"]}
    assert rows[good]["ObjectiveStatus"] == "Succeeded"
    assert rows[good]["FinalHyperParameterTuningJobObjectiveMetric"]["Value"] == 1.5
    assert rows[bad]["TrainingJobStatus"] == "Failed"
    assert rows[bad]["ObjectiveStatus"] == "Failed"
    assert rows[bad]["FailureReason"].startswith("AlgorithmError")
    assert "FinalHyperParameterTuningJobObjectiveMetric" not in rows[bad]
    assert (rows[running]["TrainingJobStatus"], rows[running]["ObjectiveStatus"]) == ("InProgress", "Pending")
    assert rows[running]["TrainingStartTime"]
    assert "TrainingStartTime" not in rows[waiting]
    for row in rows.values():
        assert set(row["TunedHyperParameters"]) == {"lr", "layers"}


async def test_a_page_token_of_training_jobs_is_valid_for_its_own_list_only(runs):
    await runs.create(most=4, parallel=4)
    await runs.create("other", most=4, parallel=4)
    listed = "ListTrainingJobsForHyperParameterTuningJob"
    answer = await runs.call(listed, HyperParameterTuningJobName="tuned", MaxResults=1)
    for params in ({"HyperParameterTuningJobName": "other"}, {"SortBy": "CreationTime"}):
        asked = {"HyperParameterTuningJobName": "tuned", "NextToken": answer["NextToken"], **params}
        assert (await refusal(runs.call(listed, **asked)))[0] == "ValidationException"


# Stop and delete


async def test_a_stopped_tuning_job_starts_no_more_trials_and_stops_running_ones(runs):
    await runs.create(most=9)
    agents = [await runs.run(name) for name in await runs.open_names()]
    await runs.stop()
    assert await runs.status() == "Stopping"
    for agent in agents:
        await runs.tell(agent.name, 1.0)
        await runs.end(agent)
    await runs.look()
    answer = await runs.describe()
    assert answer["HyperParameterTuningJobStatus"] == "Stopped"
    assert answer["TrainingJobStatusCounters"]["Stopped"] == 2
    assert answer["BestTrainingJob"]["TrainingJobName"] == agents[0].name
    assert "FailureReason" not in answer
    assert len(await runs.trials()) == 2


async def test_a_second_stop_changes_nothing_and_a_stop_after_the_end_is_refused(runs):
    await runs.create(most=9)
    await runs.run((await runs.open_names())[0])
    for _ in range(2):
        await runs.stop()
        assert await runs.status() == "Stopping"
    await runs.create("short", most=2)
    await runs.finish_all("short")
    assert await refusal(runs.stop("short")) == (
        "ValidationException",
        "The request was rejected because the hyperparameter tuning job is in status Completed.",
    )


async def test_a_tuning_job_that_is_stopped_before_any_trial_is_stopped_at_once(runs):
    await runs.call("CreateHyperParameterTuningJob", **request_of())
    await runs.stop()
    assert await runs.status() == "Stopped"
    assert await runs.trials() == []


async def test_only_an_ended_tuning_job_can_be_deleted_and_its_training_jobs_are_kept(plane, runs):
    arn = await runs.create(most=2, Tags=[{"Key": "a", "Value": "b"}])
    name = "DeleteHyperParameterTuningJob"
    code, message = await refusal(runs.call(name, HyperParameterTuningJobName="tuned"))
    assert code == "ValidationException"
    assert "is in status InProgress" in message
    jobs = await runs.open_names()
    await runs.finish_all()
    await runs.call(name, HyperParameterTuningJobName="tuned")
    assert (await refusal(runs.describe()))[0] == "ResourceNotFound"
    for job in jobs:
        described = await plane.describe(job)
        assert (described["TrainingJobStatus"], described["TuningJobArn"]) == ("Completed", arn)
    await runs.create(most=2)
    assert await runs.open_names() != jobs
    assert (await runs.call("ListTags", ResourceArn=arn))["Tags"] == []


# Search


async def test_search_finds_tuning_jobs(runs):
    await runs.create("one", most=2, Tags=[{"Key": "team", "Value": "x"}])
    await runs.create("two", most=2)
    await runs.finish_all("one")
    found = await runs.call(
        "Search",
        Resource="HyperParameterTuningJob",
        SearchExpression={
            "Filters": [{"Name": "HyperParameterTuningJobStatus", "Operator": "Equals", "Value": "Completed"}]
        },
    )
    (result,) = found["Results"]
    assert result["HyperParameterTuningJob"]["HyperParameterTuningJobName"] == "one"
    assert result["HyperParameterTuningJob"]["Tags"] == [{"Key": "team", "Value": "x"}]
    assert result["HyperParameterTuningJob"]["BestTrainingJob"]["ObjectiveStatus"] == "Succeeded"
