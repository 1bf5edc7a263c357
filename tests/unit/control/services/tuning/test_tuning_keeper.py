"""The loop that runs tuning jobs: trials and their requests, ends of each kind, early stops, warm starts."""

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from tuning_runs import FEW, METRIC, RANGES, RESOURCES, TuningRuns, definition_of, request_of

from clary.base.errors import StoreError
from clary.contract.agent_protocol import HostPhase
from clary.control.jobs.job_request import JobRequest
from clary.control.services.tuning import trial_starts, tuning_keeper
from clary.control.services.tuning.tuning_keeper import TuningKeeper
from clary.control.tuning.trial_requests import trial_name
from clary.control.tuning.tuning_job import TuningStatus
from clary.testing.control_plane import ControlPlane

OBJECTIVE = {"Type": "Minimize", "MetricName": METRIC}
NO_SHARED = {"HyperParameterTuningJobObjective": None, "ParameterRanges": None}


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


@pytest.fixture
def runs(plane):
    return TuningRuns(plane)


async def job_of(plane, name="tuned"):
    return await plane.store.tuning.get(name)


def points_of(trials):
    return [tuple(sorted(one.parameters.items())) for one in trials]


# Trials


async def test_as_many_trials_run_as_allowed_and_each_end_starts_the_next(runs):
    await runs.create(most=5, parallel=2)
    for num_started, num_open in ((2, 2), (3, 2), (4, 2), (5, 2), (5, 1)):
        assert (len(await runs.trials()), len(await runs.open_names())) == (num_started, num_open)
        await runs.finish((await runs.open_names())[0], 1.0)
    assert [one.number for one in await runs.trials()] == [1, 2, 3, 4, 5]
    assert await runs.status() == "Completed"


async def test_a_training_job_follows_the_definition_and_names_its_tuning_job(plane, runs):
    definition = definition_of(
        CheckpointConfig={"S3Uri": "s3://bucket/checkpoints/"},
        RetryStrategy={"MaximumRetryAttempts": 2},
        Environment={"A": "b"},
    )
    arn = await runs.create(most=2, TrainingJobDefinition=definition, Tags=[{"Key": "team", "Value": "x"}])
    for number, trial in enumerate(await runs.trials(), start=1):
        described = await plane.describe(trial.job_name)
        assert described["TuningJobArn"] == arn
        assert described["HyperParameters"] == {
            "epochs": "5",
            **trial.parameters,
            "_tuning_objective_metric": METRIC,
        }
        assert set(trial.parameters) == {"lr", "layers"}
        assert described["CheckpointConfig"]["S3Uri"] == f"s3://bucket/checkpoints/{trial.job_name}"
        assert described["ResourceConfig"] == RESOURCES
        assert described["RetryStrategy"] == {"MaximumRetryAttempts": 2}
        assert described["Environment"] == {"A": "b"}
        assert trial.job_name == trial_name(await job_of(plane), number)
        assert trial.job_arn == described["TrainingJobArn"]
        tags = await plane.call("sagemaker", "ListTags", ResourceArn=trial.job_arn)
        assert tags["Tags"] == [{"Key": "team", "Value": "x"}]
        assert f"It is trial {number} of tuning job tuned." in (await plane.job(trial.job_name)).warnings


async def test_trials_have_the_instance_groups_and_spot_capacity_of_the_definition(plane, runs):
    groups = [
        {"InstanceGroupName": "one", "InstanceType": "ml.m5.large", "InstanceCount": 1},
        {"InstanceGroupName": "two", "InstanceType": "ml.c5.xlarge", "InstanceCount": 2},
    ]
    grouped = definition_of(ResourceConfig={"InstanceGroups": groups, "VolumeSizeInGB": 1})
    await runs.create("groups", most=1, parallel=1, TrainingJobDefinition=grouped)
    (name,) = await runs.open_names("groups")
    training = await plane.job(name)
    assert training.request["ResourceConfig"]["InstanceGroups"] == groups
    assert len(training.plan["hosts"]) == 3
    spot = definition_of(
        EnableManagedSpotTraining=True,
        StoppingCondition={"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 120},
    )
    await runs.create("spot", most=1, parallel=1, TrainingJobDefinition=spot)
    (name,) = await runs.open_names("spot")
    request = (await plane.job(name)).request
    assert request["EnableManagedSpotTraining"] is True
    assert request["StoppingCondition"]["MaxWaitTimeInSeconds"] == 120


async def test_trials_without_spot_capacity_have_the_wait_limit_of_their_retry_strategy(plane, runs):
    limits = {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 120}
    retried = definition_of(RetryStrategy={"MaximumRetryAttempts": 2}, StoppingCondition=limits)
    await runs.create(most=1, parallel=1, TrainingJobDefinition=retried)
    (name,) = await runs.open_names()
    assert (await plane.job(name)).request["StoppingCondition"] == limits


async def test_trials_of_xgboost_report_the_objective_without_metric_definitions(plane, runs):
    specification = {"TrainingImage": "r/sagemaker-xgboost:1.7-1", "TrainingInputMode": "File"}
    objective = {"Type": "Minimize", "MetricName": "validation:rmse"}
    await runs.create(
        most=1,
        parallel=1,
        config={"HyperParameterTuningJobObjective": objective},
        TrainingJobDefinition=definition_of(AlgorithmSpecification=specification),
    )
    (name,) = await runs.open_names()
    job = await plane.job(name)
    assert job.request["AlgorithmSpecification"] == specification
    assert "validation:rmse" in [item["name"] for item in job.plan["metric_definitions"]]
    told = [(await plane.describe(name)), (await runs.describe())["TrainingJobDefinition"]]
    for one in told:
        assert "validation:rmse" in [item["Name"] for item in one["AlgorithmSpecification"]["MetricDefinitions"]]


async def test_tags_that_are_added_later_are_set_on_later_trials(plane, runs):
    arn = await runs.create(most=4)
    await runs.call("AddTags", ResourceArn=arn, Tags=[{"Key": "late", "Value": "x"}])
    await runs.finish_all()
    found = [await plane.store.get_tags(one.job_arn) for one in await runs.trials()]
    assert found == [{}, {}, {"late": "x"}, {"late": "x"}]


async def test_the_objective_is_the_last_value_and_all_values_are_stored(runs):
    await runs.create(most=1, parallel=1)
    await runs.finish((await runs.open_names())[0], 5.0, 1.0, float("nan"), 3.0)
    (trial,) = await runs.trials()
    assert (trial.outcome.value, trial.outcome.curve) == (3.0, (5.0, 1.0, 3.0))


@pytest.mark.parametrize("values", [(), (float("nan"),), (1.0, float("inf"))])
async def test_a_trial_without_a_number_at_its_end_has_no_objective(runs, values):
    await runs.create(most=2, parallel=1)
    await runs.finish((await runs.open_names())[0], *values)
    await runs.finish((await runs.open_names())[0], 7.0)
    answer = await runs.describe()
    assert answer["ObjectiveStatusCounters"] == {"Succeeded": 1, "Pending": 0, "Failed": 1}
    assert answer["BestTrainingJob"]["FinalHyperParameterTuningJobObjectiveMetric"]["Value"] == 7.0


async def test_the_value_of_a_failed_trial_is_never_the_best(runs):
    await runs.create(most=2, parallel=1)
    await runs.finish((await runs.open_names())[0], 0.001, exit_code=1)
    await runs.finish((await runs.open_names())[0], 7.0)
    answer = await runs.describe()
    assert answer["BestTrainingJob"]["TrainingJobName"] == (await runs.trials())[1].job_name
    assert answer["ObjectiveStatusCounters"] == {"Succeeded": 1, "Pending": 0, "Failed": 1}


async def test_a_training_job_that_a_client_stops_ends_its_trial_and_the_next_trial_starts(plane, runs):
    await runs.create(most=3, parallel=1)
    agent = await runs.run((await runs.open_names())[0])
    await runs.tell(agent.name, 4.0)
    await plane.stop(agent.name)
    await runs.end(agent)
    await runs.look()
    first, second = await runs.trials()
    assert (first.outcome.status.value, first.outcome.value, first.stop_reason) == ("Stopped", 4.0, "")
    assert not second.is_over


async def test_a_deleted_training_job_ends_its_trial_as_failed(plane, runs):
    await runs.create(most=3, parallel=1)
    (name,) = await runs.open_names()
    agent = await runs.run(name)
    await runs.end(agent)
    await plane.delete(name)
    await runs.look()
    first, second = await runs.trials()
    assert first.outcome.failure_reason == "its training job was deleted"
    assert (second.number, second.is_over) == (2, False)


async def test_a_grid_tries_each_point_once_although_some_fail(runs):
    await runs.create(most=None, parallel=3, config={"Strategy": "Grid", "ParameterRanges": FEW})
    await runs.finish((await runs.open_names())[1], exit_code=1)
    await runs.finish_all()
    trials = await runs.trials()
    assert len(trials) == len(set(points_of(trials))) == 4
    assert await runs.status() == "Completed"


@pytest.mark.long(10)
@pytest.mark.parametrize("strategy", ["Random", "Bayesian", "Hyperband"])
async def test_the_same_seed_gives_the_same_proposals_for_the_same_results(runs, strategy):
    for name in ("one", "two"):
        await runs.create(name, most=13, parallel=1, config={"Strategy": strategy, "RandomSeed": 7})
        await runs.finish_all(name, value_of=lambda trial: float(trial.parameters["lr"]))
    assert points_of(await runs.trials("one")) == points_of(await runs.trials("two"))
    await runs.create("three", most=1, parallel=1, config={"Strategy": strategy, "RandomSeed": 8})
    assert points_of(await runs.trials("three")) != points_of(await runs.trials("one"))[:1]


async def test_several_definitions_take_turns_with_their_own_ranges(runs):
    own = {"TuningObjective": OBJECTIVE}
    definitions = [
        definition_of(DefinitionName="wide", HyperParameterRanges=RANGES, **own),
        definition_of(DefinitionName="few", HyperParameterRanges=FEW, StaticHyperParameters={"b": "2"}, **own),
    ]
    await runs.create(most=5, TrainingJobDefinition=None, TrainingJobDefinitions=definitions, config=NO_SHARED)
    await runs.finish_all()
    trials = await runs.trials()
    assert [one.definition for one in trials] == ["wide", "few", "wide", "few", "wide"]
    assert [sorted(one.parameters) for one in trials[:2]] == [["layers", "lr"], ["act", "opt"]]
    answer = await runs.describe()
    assert answer["BestTrainingJob"]["TrainingJobDefinitionName"] == "wide"
    assert [one["DefinitionName"] for one in answer["TrainingJobDefinitions"]] == ["wide", "few"]
    assert answer["TrainingJobDefinitions"][1]["StaticHyperParameters"]["b"] == "2"


# Ends


async def test_a_reached_target_ends_the_tuning_job_and_stops_running_trials(runs):
    await runs.create(most=9, criteria={"TargetObjectiveMetricValue": 0.5})
    first, second = await runs.open_names()
    agent = await runs.run(second)
    await runs.finish(first, 0.4)
    assert await runs.status() == "InProgress"  # until the last trial has ended
    await runs.end(agent)
    await runs.look()
    assert await runs.status() == "Completed"
    trials = await runs.trials()
    assert [one.outcome.status.value for one in trials] == ["Completed", "Stopped"]
    assert "has reached the target 0.5 with 0.4" in trials[1].stop_reason


async def test_the_run_time_limit_ends_the_tuning_job_and_stops_running_trials(plane, runs):
    await runs.call("CreateHyperParameterTuningJob", **request_of(most=9, parallel=1, runtime_s=120))
    await plane.tuning_passes()
    plane.clock.advance(119)
    await plane.tuning_passes()
    assert (await job_of(plane)).ends_as is None
    plane.clock.advance(1)
    await runs.look()
    job = await job_of(plane)
    (trial,) = await runs.trials()
    assert trial.outcome.status.value == "Stopped"
    assert job.status is TuningStatus.FAILED
    assert (await runs.describe())["FailureReason"] == (
        "MaxRuntimeInSeconds 120 is over. No training job has reported a value of the objective; the first: "
        f"{trial.job_name} reported no value of the objective"
    )


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_value_before_or_after_the_run_time_limit_completes_the_tuning_job(plane, runs, is_early):
    await runs.call("CreateHyperParameterTuningJob", **request_of(most=9, parallel=1, runtime_s=120))
    await runs.look()
    (name,) = await runs.open_names()
    agent = await runs.run(name)
    if is_early:
        await runs.tell(name, 0.5)
    for _ in range(12):  # a host that is silent for longer is lost
        plane.clock.advance(10)
        await agent.report(HostPhase.RUNNING)
    await runs.look()
    assert (await job_of(plane)).ends_as is TuningStatus.COMPLETED
    if not is_early:
        await runs.tell(name, 0.5)
    await runs.end(agent)
    await runs.look()
    job = await job_of(plane)
    assert (job.end_reason, job.status) == ("MaxRuntimeInSeconds 120 is over", TuningStatus.COMPLETED)


async def test_a_step_of_the_clock_does_not_change_the_run_time_limit(plane, runs):
    await runs.call("CreateHyperParameterTuningJob", **request_of(most=9, parallel=1, runtime_s=120))
    await plane.tuning_passes()
    plane.clock.set_time_of_day(plane.clock.now() + timedelta(days=1))
    await plane.tuning_passes()
    assert (await job_of(plane)).ends_as is None
    plane.clock.set_time_of_day(plane.clock.now() - timedelta(days=2))
    plane.clock.advance(120)
    await runs.look()
    assert (await job_of(plane)).end_reason.startswith("MaxRuntimeInSeconds 120 is over")


async def test_trials_without_improvement_end_the_tuning_job(runs):
    await runs.create(
        most=None, parallel=1, criteria={"BestObjectiveNotImproving": {"MaxNumberOfTrainingJobsNotImproving": 3}}
    )
    await runs.finish_all(value_of=lambda trial: abs(trial.number - 2) + 1.0)
    assert len(await runs.trials()) == 5
    answer = await runs.describe()
    assert answer["HyperParameterTuningJobStatus"] == "Completed"
    assert answer["TuningJobCompletionDetails"] == {"NumberOfTrainingJobsObjectiveNotImproving": 3}


async def test_convergence_ends_the_tuning_job_and_is_described(runs):
    await runs.create(most=None, parallel=1, criteria={"ConvergenceDetected": {"CompleteOnConvergence": "Enabled"}})
    await runs.finish_all(value_of=lambda trial: max(1.0, 11.0 - trial.number))
    answer = await runs.describe()
    assert answer["HyperParameterTuningJobStatus"] == "Completed"
    assert answer["TuningJobCompletionDetails"]["ConvergenceDetectedTime"] == answer["HyperParameterTuningEndTime"]
    assert len(await runs.trials()) == 20


async def test_the_tuning_job_fails_when_all_trials_fail_and_names_the_first_cause(plane, runs):
    await runs.create(most=9, parallel=2)
    for _ in range(5):
        await runs.finish((await runs.open_names())[0], exit_code=7)
    assert (await runs.trials())[5].stop_reason.startswith("All 5 training jobs that have ended gave no objective")
    agent = plane.agent((await runs.open_names())[0])
    await runs.end(agent)
    await runs.look()
    answer = await runs.describe()
    assert answer["HyperParameterTuningJobStatus"] == "Failed"
    assert (await runs.trials())[0].job_name in answer["FailureReason"]
    assert "exit code: 7" in answer["FailureReason"].lower()
    assert "BestTrainingJob" not in answer


async def test_a_definition_that_becomes_impossible_ends_the_tuning_job_with_the_first_reason(plane, runs):
    channel = {
        "ChannelName": "train",
        "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://data/x"}},
    }
    await runs.create(most=9, parallel=2, TrainingJobDefinition=definition_of(InputDataConfig=[channel]))
    first, second = await runs.open_names()
    plane.objects.missing.add("data")
    agent = await runs.run(second)
    await runs.finish(first, 1.0)
    assert await runs.status() == "InProgress"
    assert (await job_of(plane)).ends_as is TuningStatus.FAILED
    await runs.tell(second, 2.0)
    await runs.end(agent)
    await runs.look()
    answer = await runs.describe()
    assert answer["HyperParameterTuningJobStatus"] == "Failed"
    assert answer["FailureReason"].startswith("training job tuned-003-")
    assert "No S3 objects found" in answer["FailureReason"]
    assert answer["TrainingJobStatusCounters"]["Completed"] == 2  # running trials have run to their end
    assert answer["BestTrainingJob"]["TrainingJobName"] == first


async def test_a_stop_request_prevails_over_an_end_that_has_begun(plane, runs):
    await runs.create(most=9, criteria={"TargetObjectiveMetricValue": 0.5})
    first, second = await runs.open_names()
    agent = await runs.run(second)
    await runs.finish(first, 0.4)
    await runs.stop()
    assert await runs.status() == "Stopping"
    await runs.end(agent)
    await runs.look()
    assert await runs.status() == "Stopped"


# Early ends of trials


async def test_the_median_rule_stops_a_running_trial(runs):
    await runs.create(most=4, parallel=1, config={"TrainingJobEarlyStoppingType": "Auto"})
    for _ in range(3):
        await runs.finish((await runs.open_names())[0], 3.0, 2.0, 1.0)
    (name,) = await runs.open_names()
    agent = await runs.run(name)
    await runs.tell(name, 9.0)
    await runs.look()
    assert (await runs.trials())[3].stop_reason == ""
    await runs.tell(name, 9.0)
    await runs.look()
    assert "worse than 2.5, the median of 3 earlier training jobs" in (await runs.trials())[3].stop_reason
    await runs.end(agent)
    await runs.look()
    answer = await runs.describe()
    assert answer["TrainingJobStatusCounters"]["Stopped"] == 1
    assert answer["ObjectiveStatusCounters"]["Succeeded"] == 4  # a trial with a reported value has an objective
    assert answer["HyperParameterTuningJobStatus"] == "Completed"


async def test_without_early_stopping_every_trial_continues(runs):
    await runs.create(most=4, parallel=1)
    for _ in range(3):
        await runs.finish((await runs.open_names())[0], 3.0, 2.0, 1.0)
    await runs.run((await runs.open_names())[0])
    await runs.tell((await runs.open_names())[0], 9.0, 9.0)
    await runs.look()
    assert (await runs.trials())[3].stop_reason == ""


async def test_a_trial_whose_stop_was_recorded_is_stopped_by_the_next_service(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        runs = TuningRuns(plane)
        await runs.create(most=4, parallel=1, config={"TrainingJobEarlyStoppingType": "Auto"})
        (trial,) = await runs.trials()
        await runs.run(trial.job_name)
        await plane.store.tuning.put_trial(replace(trial, stop_reason="early stopping"))  # the service is killed here
        clock, engine = plane.clock, plane.engine
    async with ControlPlane.open(tmp_path, clock=clock, engine=engine) as plane:
        await plane.tuning_passes()
        assert (await plane.job(trial.job_name)).end_cause is not None


# Warm starts


def start(*names, kind="IdenticalDataAndAlgorithm"):
    parents = [{"HyperParameterTuningJobName": name} for name in names]
    return {"WarmStartConfig": {"ParentHyperParameterTuningJobs": parents, "WarmStartType": kind}}


@pytest.mark.parametrize("kind", ["IdenticalDataAndAlgorithm", "TransferLearning"])
async def test_points_of_parents_are_not_tried_again(runs, kind):
    shared = {"config": {"ParameterRanges": FEW}}
    await runs.create("parent", most=2, **shared)
    await runs.finish_all("parent")
    await runs.create("child", most=2, **shared, **start("parent", kind=kind))
    await runs.finish_all("child", value_of=lambda trial: 10.0)
    both = points_of(await runs.trials("parent")) + points_of(await runs.trials("child"))
    assert len(set(both)) == 4
    answer = await runs.describe("child")
    assert answer["BestTrainingJob"]["TrainingJobName"] == (await runs.trials("child"))[0].job_name
    overall = answer.get("OverallBestTrainingJob")
    if kind == "TransferLearning":
        assert overall is None
    else:
        assert overall["TrainingJobName"] == (await runs.trials("parent"))[0].job_name
        assert overall["TuningJobName"] == "parent"
        assert answer["WarmStartConfig"] == start("parent")["WarmStartConfig"]


async def test_the_overall_best_is_the_child_s_own_trial_if_it_is_better(runs):
    await runs.create("parent", most=1, parallel=1)
    await runs.finish_all("parent")
    await runs.create("child", most=1, parallel=1, **start("parent"))
    await runs.finish_all("child", value_of=lambda trial: 0.5)
    answer = await runs.describe("child")
    assert answer["OverallBestTrainingJob"] == answer["BestTrainingJob"]


async def test_a_grid_with_a_parent_tries_all_of_its_points_again(runs):
    grid = {"config": {"Strategy": "Grid", "ParameterRanges": FEW}}
    await runs.create("parent", most=None, **grid)
    await runs.finish_all("parent")
    await runs.create("child", most=None, **grid, **start("parent", kind="TransferLearning"))
    await runs.finish_all("child")
    assert sorted(points_of(await runs.trials("child"))) == sorted(points_of(await runs.trials("parent")))


async def test_a_parent_that_is_deleted_after_the_start_is_not_needed(plane, runs):
    await runs.create("parent", most=1, parallel=1)
    await runs.finish_all("parent")
    await runs.create("child", most=2, parallel=1, **start("parent"))
    await plane.store.tuning.remove("parent")
    await runs.finish_all("child")
    assert await runs.status("child") == "Completed"


# Hosts that wait


async def serve(plane, name, after=""):
    """Have a pool's host run a job to its end and return to the pool; return the name of the pool."""
    pool = plane.hub.live_job(name).pool
    await plane.pool_gateway.next_assignment(pool, "algo-1", after=after, wait_s=0)
    agent = plane.agent(name)
    for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
        await agent.report(phase)
    await TuningRuns(plane).tell(name, 1.0)
    for phase in (HostPhase.EXITED, HostPhase.DONE):
        await agent.report(phase, exits=(plane.exit_of(0),), uploaded=agent.model_uris(phase))
    return pool


async def come_back(plane, name, pool):
    assert await plane.pool_gateway.next_assignment(pool, "algo-1", after=f"{name}:1", wait_s=0) is None
    await plane.passes(2)


async def test_trials_follow_each_other_on_the_same_hosts_which_are_released_at_the_end(plane, runs):
    await runs.create(most=2, parallel=1)
    (first,) = await runs.open_names()
    pool = await serve(plane, first)
    await plane.tuning_passes()
    await come_back(plane, first, pool)
    await plane.passes()
    (second,) = await runs.open_names()
    assert await serve(plane, second, after=f"{first}:1") == pool
    await plane.tuning_passes()  # the last trial's hosts have not returned to the pool yet
    assert await runs.status() == "Completed"
    await come_back(plane, second, pool)
    await plane.passes(2)
    assert plane.engine.released_pools == [pool]
    assert (await plane.job(second)).is_released


async def test_hosts_are_kept_after_the_end_if_the_definition_asks_for_it(plane, runs):
    resources = {**RESOURCES, "KeepAlivePeriodInSeconds": 600}
    await runs.create(most=1, parallel=1, TrainingJobDefinition=definition_of(ResourceConfig=resources))
    (name,) = await runs.open_names()
    pool = await serve(plane, name)
    await come_back(plane, name, pool)
    await plane.tuning_passes()
    await plane.passes(2)
    assert await runs.status() == "Completed"
    assert plane.engine.released_pools == []
    assert JobRequest((await plane.job(name)).request).keep_alive_s == 600


async def test_hosts_that_another_job_has_just_taken_are_not_released(plane, runs):
    await runs.create(most=1, parallel=1)
    (name,) = await runs.open_names()
    pool = await serve(plane, name)
    await come_back(plane, name, pool)
    await plane.create("other", ResourceConfig=RESOURCES)
    await plane.passes()
    assert plane.hub.live_job("other").pool == pool
    await plane.tuning_passes()
    await plane.passes(3)
    assert await runs.status() == "Completed"
    assert plane.engine.released_pools == []
    assert plane.hub.live_job("other").pool == pool


# Faults


async def test_a_failing_pass_of_one_tuning_job_does_not_affect_another(plane, runs, monkeypatch, caplog):
    await runs.call("CreateHyperParameterTuningJob", **request_of("a"))
    await runs.call("CreateHyperParameterTuningJob", **request_of("b"))
    trials = plane.store.tuning.trials

    async def failing(name):
        if name == "a":
            raise StoreError("the database is away", retryable=True)
        return await trials(name)

    monkeypatch.setattr(plane.store.tuning, "trials", failing)
    with caplog.at_level(logging.ERROR):
        await plane.tuning_passes()
    assert "tuning job a: this look failed" in caplog.text
    monkeypatch.undo()
    assert [len(await runs.trials(name)) for name in ("a", "b")] == [0, 2]
    await plane.tuning_passes()
    assert len(await runs.trials("a")) == 2


async def test_a_trial_that_could_not_be_stored_is_proposed_again_unchanged(plane, runs, monkeypatch, caplog):
    await runs.call("CreateHyperParameterTuningJob", **request_of())
    asked, create_job = [], plane.store.create_job

    async def failing(job, tags, *, trial=None):
        asked.append(trial)
        if len(asked) < 3:
            raise StoreError("disk full", retryable=True)
        await create_job(job, tags, trial=trial)

    monkeypatch.setattr(plane.store, "create_job", failing)
    for _ in range(3):
        await plane.tuning_passes()
    assert asked[0] == asked[1] == asked[2]
    assert await runs.trials() == asked[2:]
    assert [one.number for one in asked[2:]] == [1, 2]


async def test_a_trial_whose_commit_was_not_confirmed_runs_once(plane, runs, monkeypatch):
    await runs.call("CreateHyperParameterTuningJob", **request_of())
    create_job, lost = plane.store.create_job, []

    async def unconfirmed(job, tags, *, trial=None):
        await create_job(job, tags, trial=trial)
        if not lost:
            lost.append(job.name)
            raise StoreError("a write was not confirmed", retryable=True)

    monkeypatch.setattr(plane.store, "create_job", unconfirmed)
    await plane.tuning_passes()
    assert await runs.open_names() == lost
    await runs.look()
    await runs.finish_all()
    trials = await runs.trials()
    assert [one.number for one in trials] == [1, 2, 3, 4]
    assert trials[0].job_name == lost[0]
    assert [one.outcome.value for one in trials] == [1.0, 2.0, 3.0, 4.0]
    assert plane.engine.launched.count(f"{lost[0]}/1") == 1


async def test_an_unconfirmed_commit_of_the_end_still_ends_the_tuning_job(plane, runs, monkeypatch):
    await runs.create(most=2)
    await runs.finish((await runs.open_names())[0], 1.0)
    change = plane.store.tuning.change

    async def unconfirmed(name, wanted):
        await change(name, wanted)
        raise StoreError("a write was not confirmed", retryable=True)

    monkeypatch.setattr(plane.store.tuning, "change", unconfirmed)
    await runs.finish((await runs.open_names())[0], 1.0)
    monkeypatch.undo()
    await plane.tuning_passes(2)
    answer = await runs.describe()
    assert answer["HyperParameterTuningJobStatus"] == "Completed"
    assert answer["TrainingJobStatusCounters"]["Completed"] == 2


async def test_a_stop_between_a_proposal_and_its_training_job_starts_no_trial(plane, runs, monkeypatch):
    await runs.call("CreateHyperParameterTuningJob", **request_of())
    propose = trial_starts.propose
    loop = asyncio.get_running_loop()

    def stopped_meanwhile(question):
        stop = runs.call("StopHyperParameterTuningJob", HyperParameterTuningJobName="tuned")
        asyncio.run_coroutine_threadsafe(stop, loop).result(30)
        return propose(question)

    monkeypatch.setattr(trial_starts, "propose", stopped_meanwhile)
    await plane.tuning_passes(2)
    assert await runs.trials() == []
    assert plane.hub.waiting_jobs() == {}
    assert await runs.status() == "Stopped"


async def test_a_stop_just_before_another_end_is_recorded_wins(plane, runs, monkeypatch):
    await runs.create(most=9, parallel=1, criteria={"TargetObjectiveMetricValue": 0.5})
    change = plane.store.tuning.change

    async def stopped_before(name, wanted):
        monkeypatch.undo()
        await runs.call("StopHyperParameterTuningJob", HyperParameterTuningJobName=name)
        return await change(name, wanted)

    monkeypatch.setattr(plane.store.tuning, "change", stopped_before)
    await runs.finish((await runs.open_names())[0], 0.4)
    await plane.tuning_passes()
    assert await runs.status() == "Stopped"


async def test_an_existing_training_job_with_the_next_trial_s_name_uses_up_the_number(plane, runs):
    await runs.call("CreateHyperParameterTuningJob", **request_of())
    await plane.create(trial_name(await job_of(plane), 1))
    await runs.look()
    assert [one.number for one in await runs.trials()] == [2, 3]
    await runs.finish_all()
    assert len(await runs.trials()) == 4


async def test_the_number_of_a_trial_whose_row_is_unreadable_is_not_used_again(plane, runs):
    await runs.create(most=3, parallel=1)
    await runs.finish((await runs.open_names())[0], 1.0)
    statement = text("UPDATE tuning_trials SET document = '{' WHERE number = 2")
    await plane.store._writer.run(lambda connection: connection.execute(statement))
    await runs.look()
    await runs.finish_all()
    assert [one.number for one in await runs.trials()] == [1, 3, 4]


async def test_an_unreadable_record_of_a_training_job_ends_its_trial_as_failed(plane, runs):
    await runs.create(most=2, parallel=1)
    (name,) = await runs.open_names()
    agent = await runs.run(name)
    await runs.tell(name, 1.0)
    await runs.end(agent)
    statement = text("UPDATE jobs SET document = '{' WHERE name = :name")
    await plane.store._writer.run(lambda connection: connection.execute(statement, {"name": name}))
    await runs.look()
    await runs.finish_all()
    first, _ = await runs.trials()
    assert first.outcome.failure_reason.startswith("the record of its training job is lost")
    assert await runs.status() == "Completed"


# The loop itself


async def until(condition):
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_the_loop_starts_trials_when_a_tuning_job_is_created_and_when_a_trial_ends(plane, runs, monkeypatch):
    monkeypatch.setattr(tuning_keeper, "TICK_S", 3600)
    task = asyncio.create_task(plane.tuning_keeper.run())
    try:
        await runs.call("CreateHyperParameterTuningJob", **request_of())

        async def has_two():
            return len(await runs.trials()) == 2

        async def has_three():
            return len(await runs.trials()) == 3

        await until(has_two)
        await plane.passes(2)
        agent = await runs.run((await runs.open_names())[0])
        await runs.tell(agent.name, 1.0)
        await runs.end(agent)
        await until(has_three)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_loop_survives_an_unreachable_database_at_its_start(plane, runs, monkeypatch, caplog):
    await runs.call("CreateHyperParameterTuningJob", **request_of())
    monkeypatch.setattr(tuning_keeper, "TICK_S", 0.01)
    unfinished, failures = plane.store.tuning.unfinished, [None] * 3

    async def away():
        if failures:
            failures.pop()
            raise StoreError("the database is away", retryable=True)
        return await unfinished()

    monkeypatch.setattr(plane.store.tuning, "unfinished", away)
    task = asyncio.create_task(TuningKeeper(plane.services).run())
    try:

        async def has_begun():
            return not failures and len(await runs.trials()) == 2

        await until(has_begun)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert "tuning jobs could not be read" in caplog.text


async def test_the_run_time_limit_ends_a_tuning_job_without_any_other_event(plane, runs, monkeypatch):
    monkeypatch.setattr(tuning_keeper, "TICK_S", 0.01)
    await runs.call("CreateHyperParameterTuningJob", **request_of(runtime_s=120))
    task = asyncio.create_task(plane.tuning_keeper.run())
    try:

        async def has_trials():
            return bool(await runs.trials())

        async def is_over():
            return (await job_of(plane)).is_terminal

        await until(has_trials)
        plane.clock.advance(121)
        await until(is_over)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_trials_count_as_similar_jobs_by_the_name_of_their_tuning_job(plane, runs):
    await runs.create(most=2, parallel=1)
    (name,) = await runs.open_names()
    job = await plane.job(name)
    assert job.plan["series"] == job.tuning_job_arn != ""
    await plane.create("alone")
    await plane.passes()
    assert (await plane.job("alone")).plan["series"] == ""
