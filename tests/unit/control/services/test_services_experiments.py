"""Experiments, trials and trial components: their lifetimes, their lists, and the components of training jobs."""

from datetime import timedelta

import pytest

from clary.base.errors import WireError
from clary.testing.control_plane import ControlPlane
from clary.testing.wire_checks import answers_in_shape

ARN = "arn:aws:sagemaker:us-west-2:000000000000:"


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        answers_in_shape(plane)
        yield plane


async def make(plane, *, experiments=(), trials=(), components=()):
    """Create records one second apart; `trials` holds (name, experiment), `components` (name, trial or None)."""
    for name in experiments:
        plane.clock.advance(1)
        await plane.call("sagemaker", "CreateExperiment", ExperimentName=name)
    for name, experiment in trials:
        plane.clock.advance(1)
        await plane.call("sagemaker", "CreateTrial", TrialName=name, ExperimentName=experiment)
    for name, trial in components:
        plane.clock.advance(1)
        await plane.call("sagemaker", "CreateTrialComponent", TrialComponentName=name)
        if trial is not None:
            await plane.call("sagemaker", "AssociateTrialComponent", TrialComponentName=name, TrialName=trial)


async def refused(plane, operation, **params):
    """Return the code and the message of a call that must fail."""
    with pytest.raises(WireError) as error:
        await plane.call("sagemaker", operation, **params)
    return error.value.code, error.value.message


async def listed(plane, operation, member, name, **params):
    """Return the names from all pages of a list."""
    names, token = [], {}
    for _ in range(100):
        answer = await plane.call("sagemaker", operation, **params, **token)
        names += [item[name] for item in answer[member]]
        if "NextToken" not in answer:
            return names
        token = {"NextToken": answer["NextToken"]}
    raise AssertionError(f"{operation} does not end")


async def components(plane, **params):
    return await listed(plane, "ListTrialComponents", "TrialComponentSummaries", "TrialComponentName", **params)


async def component(plane, name):
    return await plane.call("sagemaker", "DescribeTrialComponent", TrialComponentName=name)


async def test_an_experiment_is_created_described_updated_and_deleted(plane):
    answer = await plane.call("sagemaker", "CreateExperiment", ExperimentName="Digits", Description="first")
    assert answer == {"ExperimentArn": f"{ARN}experiment/digits"}
    found = await plane.call("sagemaker", "DescribeExperiment", ExperimentName="Digits")
    assert (found["DisplayName"], found["Description"]) == ("Digits", "first")
    assert found["CreationTime"] == found["LastModifiedTime"] == plane.clock.now()
    plane.clock.advance(5)
    await plane.call("sagemaker", "UpdateExperiment", ExperimentName="Digits", DisplayName="numbers")
    changed = await plane.call("sagemaker", "DescribeExperiment", ExperimentName="Digits")
    assert (changed["DisplayName"], changed["Description"]) == ("numbers", "first")
    assert changed["LastModifiedTime"] - changed["CreationTime"] == timedelta(seconds=5)
    await plane.call("sagemaker", "DeleteExperiment", ExperimentName="Digits")
    code, words = await refused(plane, "DescribeExperiment", ExperimentName="Digits")
    assert (code, words) == ("ResourceNotFound", "Experiment 'Digits' does not exist.")


@pytest.mark.parametrize("second", ["Digits", "digits", "DIGITS"])
async def test_names_are_unique_ignoring_case_with_the_message_that_the_sdk_expects(plane, second):
    await make(plane, experiments=["Digits"])
    code, words = await refused(plane, "CreateExperiment", ExperimentName=second)
    assert code == "ValidationException"
    assert "already exists" in words
    assert (await plane.call("sagemaker", "DescribeExperiment", ExperimentName=second))["ExperimentName"] == "Digits"


async def test_an_experiment_and_a_trial_may_share_a_name(plane):
    await make(plane, experiments=["same"], trials=[("same", "same")], components=[("same", "same")])
    assert (await component(plane, "same"))["TrialComponentArn"] == f"{ARN}experiment-trial-component/same"


async def test_a_record_with_dependents_can_not_be_deleted(plane):
    await make(plane, experiments=["e"], trials=[("t", "e")], components=[("c", "t")])
    code, words = await refused(plane, "DeleteExperiment", ExperimentName="e")
    assert (code, "1 trial(s)" in words) == ("ValidationException", True)
    assert (await refused(plane, "DeleteTrial", TrialName="t"))[0] == "ValidationException"
    assert (await refused(plane, "DeleteTrialComponent", TrialComponentName="c"))[0] == "ValidationException"
    await plane.call("sagemaker", "DisassociateTrialComponent", TrialName="t", TrialComponentName="c")
    await plane.call("sagemaker", "DeleteTrialComponent", TrialComponentName="c")
    await plane.call("sagemaker", "DeleteTrial", TrialName="t")
    await plane.call("sagemaker", "DeleteExperiment", ExperimentName="e")


@pytest.mark.parametrize(
    ("operation", "params"),
    [
        ("UpdateExperiment", {"ExperimentName": "no"}),
        ("DeleteExperiment", {"ExperimentName": "no"}),
        ("CreateTrial", {"TrialName": "t2", "ExperimentName": "no"}),
        ("DescribeTrial", {"TrialName": "no"}),
        ("UpdateTrial", {"TrialName": "no"}),
        ("DeleteTrial", {"TrialName": "no"}),
        ("ListTrials", {"ExperimentName": "no"}),
        ("ListTrials", {"TrialComponentName": "no"}),
        ("DescribeTrialComponent", {"TrialComponentName": "no"}),
        ("DescribeTrialComponent", {"TrialComponentName": "no-aws-training-job"}),
        ("UpdateTrialComponent", {"TrialComponentName": "no"}),
        ("DeleteTrialComponent", {"TrialComponentName": "no"}),
        ("ListTrialComponents", {"ExperimentName": "no"}),
        ("ListTrialComponents", {"TrialName": "no"}),
        ("AssociateTrialComponent", {"TrialName": "no", "TrialComponentName": "c"}),
        ("AssociateTrialComponent", {"TrialName": "t", "TrialComponentName": "no"}),
        ("DisassociateTrialComponent", {"TrialName": "t", "TrialComponentName": "c"}),
    ],
)
async def test_a_missing_record_is_refused_by_name(plane, operation, params):
    await make(plane, experiments=["e"], trials=[("t", "e")], components=[("c", None)])
    code, words = await refused(plane, operation, **params)
    assert code == "ResourceNotFound"
    assert "does not exist" in words


async def test_an_update_adds_and_removes_parameters_and_artifacts(plane):
    await plane.call(
        "sagemaker",
        "CreateTrialComponent",
        TrialComponentName="c",
        Parameters={"lr": {"NumberValue": 0.1}, "opt": {"StringValue": "adam"}},
    )
    await plane.call(
        "sagemaker",
        "UpdateTrialComponent",
        TrialComponentName="c",
        Parameters={"lr": {"NumberValue": 0.2}},
        ParametersToRemove=["opt", "never-there"],
        OutputArtifacts={"log": {"Value": "s3://b/log"}},
        Status={"PrimaryStatus": "InProgress"},
        StartTime=plane.clock.now(),
    )
    found = await component(plane, "c")
    assert found["Parameters"] == {"lr": {"NumberValue": 0.2}}
    assert found["OutputArtifacts"] == {"log": {"Value": "s3://b/log"}}
    assert (found["StartTime"], found["Status"]) == (plane.clock.now(), {"PrimaryStatus": "InProgress"})


async def test_a_component_has_at_most_300_parameters(plane):
    many = {f"p{number}": {"NumberValue": 1.0} for number in range(300)}
    await plane.call("sagemaker", "CreateTrialComponent", TrialComponentName="c", Parameters=many)
    one = {"one-more": {"NumberValue": 1.0}}
    code, words = await refused(plane, "UpdateTrialComponent", TrialComponentName="c", Parameters=one)
    assert (code, "would have 301 Parameters" in words) == ("ValidationException", True)
    await plane.call(
        "sagemaker", "UpdateTrialComponent", TrialComponentName="c", Parameters=one, ParametersToRemove=["p0"]
    )


@pytest.mark.parametrize("by", ["Name", "CreationTime"])
@pytest.mark.parametrize("order", ["Ascending", "Descending"])
async def test_pages_hold_every_component_once_in_order(plane, by, order):
    names = ["m", "B", "a", "z", "C"]
    await make(plane, experiments=["e"], trials=[("t", "e")], components=[(name, "t") for name in names])
    expected = sorted(names, key=str.lower) if by == "Name" else list(names)
    if order == "Descending":
        expected.reverse()
    assert await components(plane, TrialName="t", SortBy=by, SortOrder=order, MaxResults=2) == expected
    assert await components(plane, ExperimentName="E", SortBy=by, SortOrder=order, MaxResults=2) == expected


async def test_a_component_of_two_trials_is_listed_once(plane):
    await make(plane, experiments=["e", "f"], trials=[("t", "e"), ("u", "e"), ("v", "f")], components=[("c", "t")])
    for trial in ("u", "v"):
        await plane.call("sagemaker", "AssociateTrialComponent", TrialName=trial, TrialComponentName="c")
    assert await components(plane, ExperimentName="e") == ["c"]
    trials = await listed(plane, "ListTrials", "TrialSummaries", "TrialName", TrialComponentName="c", MaxResults=1)
    assert sorted(trials) == ["t", "u", "v"]
    assert await listed(plane, "ListTrials", "TrialSummaries", "TrialName", ExperimentName="f") == ["v"]


async def test_lists_are_filtered_by_time_of_creation(plane):
    await make(plane, experiments=["a", "b", "c"])
    middle = (await plane.call("sagemaker", "DescribeExperiment", ExperimentName="b"))["CreationTime"]

    async def names(**params):
        return await listed(plane, "ListExperiments", "ExperimentSummaries", "ExperimentName", **params)

    assert await names(CreatedAfter=middle) == ["c"]
    assert await names(CreatedBefore=middle) == ["a"]


async def test_a_page_token_of_another_list_is_refused(plane):
    await make(plane, experiments=["a", "b"])
    token = (await plane.call("sagemaker", "ListExperiments", MaxResults=1))["NextToken"]
    code, words = await refused(plane, "ListTrials", NextToken=token)
    assert (code, words.startswith("Invalid NextToken")) == ("ValidationException", True)


async def test_a_list_of_components_accepts_one_filter(plane):
    assert (await refused(plane, "ListTrialComponents", TrialName="t", ExperimentName="e"))[0] == "ValidationException"


async def test_tags_of_a_component_are_kept_and_deleted_with_it(plane):
    await plane.call(
        "sagemaker", "CreateTrialComponent", TrialComponentName="c", Tags=[{"Key": "team", "Value": "red"}]
    )
    arn = (await component(plane, "c"))["TrialComponentArn"]
    await plane.call("sagemaker", "AddTags", ResourceArn=arn, Tags=[{"Key": "more", "Value": "1"}])
    answer = await plane.call("sagemaker", "ListTags", ResourceArn=arn)
    assert answer["Tags"] == [{"Key": "more", "Value": "1"}, {"Key": "team", "Value": "red"}]
    await plane.call("sagemaker", "DeleteTrialComponent", TrialComponentName="c")
    assert (await refused(plane, "ListTags", ResourceArn=arn))[0] == "ValidationException"
    await plane.call("sagemaker", "CreateTrialComponent", TrialComponentName="c")
    assert (await plane.call("sagemaker", "ListTags", ResourceArn=arn))["Tags"] == []


# Training jobs


async def test_a_job_with_an_experiment_config_gets_a_component_in_its_trial(plane):
    await make(plane, experiments=["e"], trials=[("t", "e")])
    await plane.create(
        "Job",
        HyperParameters={"lr": "0.1", "opt": '"adam"', "odd": "nan"},
        ExperimentConfig={"ExperimentName": "e", "TrialName": "t", "TrialComponentDisplayName": "shown"},
    )
    assert await components(plane, TrialName="t") == ["Job-aws-training-job"]
    found = await component(plane, "Job-aws-training-job")
    assert found["DisplayName"] == "shown"
    assert found["Source"] == {"SourceArn": f"{ARN}training-job/Job", "SourceType": "SageMakerTrainingJob"}
    assert found["Parameters"]["lr"] == {"NumberValue": 0.1}
    assert found["Parameters"]["opt"] == {"StringValue": '"adam"'}
    assert found["Parameters"]["odd"] == {"StringValue": "nan"}
    assert found["Parameters"]["SageMaker.InstanceCount"] == {"NumberValue": 1.0}
    assert found["Status"]["PrimaryStatus"] == "InProgress"
    assert (await plane.describe("Job"))["ExperimentConfig"]["TrialName"] == "t"


async def test_the_component_follows_its_job_to_the_end_and_outlives_it(plane):
    await make(plane, experiments=["e"])
    await plane.create(ExperimentConfig={"ExperimentName": "e"})
    data = [{"MetricName": "loss", "Timestamp": plane.clock.now(), "Value": 2.0, "Step": 1}]
    await plane.call("sagemaker-metrics", "BatchPutMetrics", TrialComponentName="job-aws-training-job", MetricData=data)
    await plane.run_to_end()
    before = await component(plane, "job-aws-training-job")
    assert before["Status"]["PrimaryStatus"] == "Completed"
    assert before["Status"]["Message"] == "Status: Completed, secondary status: Completed, failure reason: ."
    assert before["StartTime"] < before["EndTime"]
    assert before["OutputArtifacts"]["SageMaker.ModelArtifact"]["Value"].endswith("model.tar.gz")
    assert [(item["MetricName"], item["Last"]) for item in before["Metrics"]] == [("loss", 2.0)]
    await plane.delete()
    assert await component(plane, "job-aws-training-job") == before
    await plane.create(ExperimentConfig={"ExperimentName": "e"})
    again = await component(plane, "job-aws-training-job")
    assert (again["Status"]["PrimaryStatus"], again["Metrics"]) == ("InProgress", [])


async def test_without_a_trial_the_job_gets_its_own_trial_in_the_experiment(plane):
    await make(plane, experiments=["e"])
    await plane.create(ExperimentConfig={"ExperimentName": "e"})
    assert await components(plane, ExperimentName="e") == ["job-aws-training-job"]
    (trial,) = (await plane.call("sagemaker", "ListTrials", ExperimentName="e"))["TrialSummaries"]
    assert trial["TrialName"] == "job-aws-trial"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"ExperimentName": "no"}, "Experiment 'no' of ExperimentConfig does not exist."),
        ({"ExperimentName": "e", "TrialName": "no"}, "Trial 'no' of ExperimentConfig does not exist."),
        ({"ExperimentName": "e", "TrialName": "u"}, "belongs to experiment 'f', not to 'e'"),
        ({"ExperimentName": "e", "TrialName": "t", "RunName": "no"}, "Run 'no' of ExperimentConfig does not exist."),
    ],
)
async def test_a_job_of_a_missing_experiment_is_refused_and_not_stored(plane, config, words):
    await make(plane, experiments=["e", "f"], trials=[("t", "e"), ("u", "f")])
    with pytest.raises(WireError) as error:
        await plane.create(ExperimentConfig=config)
    assert error.value.code == "ValidationException"
    assert words in error.value.message
    assert await plane.store.get_job("job") is None


async def test_the_component_of_any_job_exists_once_it_is_requested(plane):
    await plane.create("Plain")
    assert await components(plane) == []
    found = await component(plane, "plain-aws-training-job")
    assert found["TrialComponentName"] == "Plain-aws-training-job"
    assert await components(plane) == ["Plain-aws-training-job"]


async def test_the_component_of_a_job_is_found_by_its_arn_in_lower_case(plane):
    await plane.create("Plain")
    assert await components(plane, SourceArn=f"{ARN}training-job/Plain".lower()) == ["Plain-aws-training-job"]
    assert await components(plane, SourceArn=f"{ARN}training-job/other") == []


async def test_added_parameters_are_listed_with_those_of_the_job(plane):
    await plane.create(HyperParameters={"lr": "1"})
    await plane.call(
        "sagemaker",
        "UpdateTrialComponent",
        TrialComponentName="job-aws-training-job",
        Parameters={"mine": {"StringValue": "x"}},
    )
    found = (await component(plane, "job-aws-training-job"))["Parameters"]
    assert (found["lr"], found["mine"]) == ({"NumberValue": 1.0}, {"StringValue": "x"})


async def test_a_later_job_of_the_same_name_gets_a_new_component(plane):
    await plane.create(HyperParameters={"lr": "1"})
    await component(plane, "job-aws-training-job")
    await plane.run_to_end()
    await plane.delete()
    assert (await component(plane, "job-aws-training-job"))["Status"]["PrimaryStatus"] == "Completed"
    plane.clock.advance(60)
    await plane.create(HyperParameters={"lr": "2"})
    found = await component(plane, "job-aws-training-job")
    assert (found["Status"]["PrimaryStatus"], found["Parameters"]["lr"]) == ("InProgress", {"NumberValue": 2.0})
