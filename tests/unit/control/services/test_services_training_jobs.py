"""Create, describe, stop, update, delete and list, with the responses parsed by botocore."""

import asyncio
import json
from datetime import timedelta

import botocore.session
import pytest
from botocore.parsers import create_parser

from clary.base.errors import WireError
from clary.contract.agent_protocol import HostPhase
from clary.contract.statuses import TrainingJobStatus
from clary.control.jobs.training_job import FinalMetric
from clary.control.services.dispatch import HANDLERS
from clary.control.services.sagemaker import training_jobs
from clary.control.settings import Settings
from clary.control.store.errors import JobNotFound
from clary.control.wire.models import Protocol, service
from clary.control.wire.serializing import serialize
from clary.testing.control_plane import UNKNOWN_IMAGE, ControlPlane, request_of

MODEL = botocore.session.get_session().get_service_model("sagemaker")


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


def as_botocore_reads(operation_name, answer):
    """Serialise a response, and return it as botocore parses it."""
    operation = service("sagemaker").operation(operation_name, Protocol.JSON_1_1)
    response = serialize(operation, answer, request_id="R")
    raw = {"status_code": response.status, "headers": dict(response.headers), "body": response.body}
    return create_parser("json").parse(raw, MODEL.operation_model(operation_name).output_shape)


async def described(plane, name="job"):
    return as_botocore_reads("DescribeTrainingJob", await plane.describe(name))


async def refusal(call):
    with pytest.raises(WireError) as error:
        await call
    return error.value.code, error.value.message


def check_minimum(answer, request):
    """Check the members that every tested client needs (docs/design/contract.md, 2.6)."""
    for member, value in request.items():
        if member not in ("OutputDataConfig", "AlgorithmSpecification", "InputDataConfig", "Tags"):
            assert answer[member] == value, member
    assert answer["OutputDataConfig"]["KmsKeyId"] == ""
    for member in ("EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining"):
        assert answer[member] is False
    for member in ("TrainingJobArn", "TrainingJobStatus", "SecondaryStatus", "CreationTime", "LastModifiedTime"):
        assert answer[member]
    assert "Tags" not in answer
    rows = answer["SecondaryStatusTransitions"]
    assert all(row["Status"] and row["StartTime"] and row["StatusMessage"] for row in rows)
    assert all(row["EndTime"] >= row["StartTime"] for row in rows[:-1])
    assert rows[-1]["Status"] == answer["SecondaryStatus"]


async def begin(plane, *phases):
    await plane.passes()
    agent = plane.agent()
    for phase in phases:
        await agent.report(phase)
    return agent


async def test_describe_of_a_waiting_job(plane):
    await plane.create("holder", num_hosts=4)
    await plane.create(Tags=[{"Key": "a", "Value": "b"}])
    await plane.passes()
    answer = await described(plane)
    check_minimum(answer, request_of())
    assert answer["SecondaryStatus"] in ("Starting", "Pending")
    assert answer["SecondaryStatusTransitions"][-1]["StatusMessage"].startswith("Needs 1 host; 0 of 4 hosts are free")
    assert not {"TrainingStartTime", "TrainingEndTime", "FailureReason", "ModelArtifacts"} & set(answer)


async def test_describe_of_a_running_job(plane):
    await plane.create()
    await begin(plane, HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING)
    answer = await described(plane)
    check_minimum(answer, request_of())
    assert (answer["TrainingJobStatus"], answer["SecondaryStatus"]) == ("InProgress", "Training")
    assert answer["TrainingStartTime"]
    assert not {"TrainingEndTime", "TrainingTimeInSeconds", "ModelArtifacts"} & set(answer)


async def test_describe_of_a_completed_job(plane):
    await plane.create()
    await plane.run_to_end()
    answer = await described(plane)
    check_minimum(answer, request_of())
    assert answer["TrainingJobStatus"] == "Completed"
    assert answer["ModelArtifacts"] == {"S3ModelArtifacts": "s3://bucket/out/job/output/model.tar.gz"}
    assert answer["TrainingEndTime"] >= answer["TrainingStartTime"]
    assert answer["TrainingTimeInSeconds"] == answer["BillableTimeInSeconds"] == 2


async def test_a_job_that_ended_within_a_second_has_trained_for_one_second(plane):
    await plane.create()
    agent = await begin(plane, HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING)
    await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
    await agent.report(HostPhase.DONE)
    answer = await described(plane)
    assert answer["TrainingStartTime"] == answer["TrainingEndTime"]
    assert answer["TrainingTimeInSeconds"] == answer["BillableTimeInSeconds"] == 1


async def test_describe_of_a_failed_job(plane):
    await plane.create()
    await plane.run_to_end(exit_code=3)
    answer = await described(plane)
    check_minimum(answer, request_of())
    assert (answer["TrainingJobStatus"], answer["SecondaryStatus"]) == ("Failed", "Failed")
    assert answer["FailureReason"] == "AlgorithmError: algo-1: the program ended with exit code 3, exit code: 3"
    assert answer["TrainingTimeInSeconds"] >= 1


async def test_describe_of_a_stopped_job_while_and_after_it_stops(plane):
    await plane.create()
    agent = await begin(plane, HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING)
    assert await plane.call("sagemaker", "StopTrainingJob", TrainingJobName="job") == {}
    assert (await described(plane))["TrainingJobStatus"] == "Stopping"
    await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
    await agent.report(HostPhase.DONE, uploaded=agent.model_uris(HostPhase.DONE))
    answer = await described(plane)
    check_minimum(answer, request_of())
    assert (answer["TrainingJobStatus"], answer["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert answer["ModelArtifacts"]["S3ModelArtifacts"].endswith("/model.tar.gz")
    assert "FailureReason" not in answer
    rows = [row["Status"] for row in answer["SecondaryStatusTransitions"]]
    assert rows == ["Starting", "Downloading", "Training", "Stopping", "Uploading", "Stopped"]


async def test_describe_fills_in_the_defaults_of_sagemaker(plane):
    source = {"DataSource": {"S3DataSource": {"S3Uri": "s3://other/p", "S3DataType": "S3Prefix"}}}
    sharded = {"DataSource": {"S3DataSource": {"S3Uri": "s3://other/p", "S3DataDistributionType": "ShardedByS3Key"}}}
    await plane.create(
        InputDataConfig=[{"ChannelName": "a", **source}, {"ChannelName": "b", "CompressionType": "Gzip", **sharded}],
        StoppingCondition={"MaxPendingTimeInSeconds": 7200},
        CheckpointConfig={"S3Uri": "s3://bucket/checkpoints"},
        DebugHookConfig={"S3OutputPath": "s3://bucket/tensors"},
    )
    answer = await described(plane)
    first, second = answer["InputDataConfig"]
    assert (first["CompressionType"], first["RecordWrapperType"]) == ("None", "None")
    assert first["DataSource"]["S3DataSource"]["S3DataDistributionType"] == "FullyReplicated"
    assert second["CompressionType"] == "Gzip"
    assert second["DataSource"]["S3DataSource"]["S3DataDistributionType"] == "ShardedByS3Key"
    assert answer["AlgorithmSpecification"]["TrainingInputMode"] == "File"
    assert answer["AlgorithmSpecification"]["EnableSageMakerMetricsTimeSeries"] is False
    assert answer["OutputDataConfig"] == {
        "KmsKeyId": "",
        "CompressionType": "GZIP",
        "S3OutputPath": "s3://bucket/out",
    }
    assert answer["StoppingCondition"] == {"MaxRuntimeInSeconds": 86_400, "MaxPendingTimeInSeconds": 7200}
    # Returned as they were sent: the SDK's own tests compare them with the request.
    assert answer["CheckpointConfig"] == {"S3Uri": "s3://bucket/checkpoints"}
    assert answer["DebugHookConfig"] == {"S3OutputPath": "s3://bucket/tensors"}


async def test_a_job_without_channels_and_profiler_is_described_as_by_sagemaker(plane):
    await plane.create()
    answer = await described(plane)
    assert (answer["InputDataConfig"], answer["ProfilingStatus"]) == ([], "Disabled")
    assert "ProfilerConfig" not in answer


PROFILED = {"S3OutputPath": "s3://other/prof"}


@pytest.mark.parametrize(
    ("config", "told", "status"),
    [
        (PROFILED, {**PROFILED, "ProfilingIntervalInMilliseconds": 500}, "Enabled"),
        ({"ProfilingIntervalInMilliseconds": 100}, {"ProfilingIntervalInMilliseconds": 100}, "Enabled"),
        ({**PROFILED, "DisableProfiler": True}, {**PROFILED, "DisableProfiler": True}, "Disabled"),
        (
            {"DisableProfiler": True},
            None,
            "Disabled",
        ),  # disable_profiler=True of SDK v2, with the status that the SDK's test expects
    ],
)
async def test_the_profiler_s_configuration_and_status(plane, config, told, status):
    await plane.create(ProfilerConfig=config)
    answer = await described(plane)
    assert (answer.get("ProfilerConfig"), answer["ProfilingStatus"]) == (told, status)


async def test_the_described_interval_is_the_interval_that_hosts_get(tmp_path):
    async with ControlPlane.open(tmp_path, settings=Settings(home=str(tmp_path), metrics_interval_s=2)) as plane:
        await plane.create(ProfilerConfig=PROFILED)
        assert (await described(plane))["ProfilerConfig"]["ProfilingIntervalInMilliseconds"] == 2000
        await plane.passes()
        assert (await plane.job()).plan["metrics_interval_s"] == 2
        assert (await described(plane))["ProfilerConfig"]["ProfilingIntervalInMilliseconds"] == 2000


async def test_no_interval_is_described_if_hosts_are_not_measured(tmp_path):
    async with ControlPlane.open(tmp_path, settings=Settings(home=str(tmp_path), metrics_interval_s=0)) as plane:
        await plane.create(ProfilerConfig=PROFILED)
        assert (await described(plane))["ProfilerConfig"] == PROFILED


async def test_an_uncompressed_model_is_stored_below_a_prefix_without_a_slash(plane):
    await plane.create(OutputDataConfig={"S3OutputPath": "s3://other", "CompressionType": "NONE"})
    await plane.run_to_end()
    assert (await described(plane))["ModelArtifacts"]["S3ModelArtifacts"] == "s3://other/job/output/model"


async def test_final_metrics_are_described_even_if_they_are_not_numbers(plane):
    await plane.create()
    at = plane.clock.now()
    await plane.hub.record_metrics(
        "job", [FinalMetric(name="loss", value=0.5, at=at), FinalMetric(name="odd", value=float("nan"), at=at)]
    )
    first, second = (await plane.describe())["FinalMetricDataList"]
    assert (first["MetricName"], first["Value"], first["Timestamp"]) == ("loss", 0.5, at)
    assert second["Value"] != second["Value"]
    operation = service("sagemaker").operation("DescribeTrainingJob", Protocol.JSON_1_1)
    body = json.loads(serialize(operation, await plane.describe(), request_id="R").body)
    assert body["FinalMetricDataList"][1]["Value"] == "NaN"


async def test_create_refuses_an_impossible_job_and_stores_nothing(plane):
    source = {"DataSource": {"S3DataSource": {"S3Uri": "s3://nowhere/p"}}}
    plane.objects.missing.add("nowhere")
    cases = [
        (request_of(num_hosts=5), "ResourceLimitExceeded", "is 4 Instances, with current utilization of 0 Instances"),
        (request_of(AlgorithmSpecification={"TrainingImage": UNKNOWN_IMAGE}), "ValidationException", UNKNOWN_IMAGE),
        (
            request_of(InputDataConfig=[{"ChannelName": "a", **source}]),
            "ValidationException",
            'No S3 objects found under S3 URL "s3://nowhere/p" given in input data source. Please ensure that the '
            "bucket exists in the selected region (us-west-2)",
        ),
        (
            request_of(InputDataConfig=[{"ChannelName": "a", **source}]),
            "ValidationException",
            "There is no bucket nowhere in this service's store",
        ),
        (
            request_of(Tags=[{"Key": "k", "Value": "1"}, {"Key": "k", "Value": "2"}]),
            "ValidationException",
            "Duplicate tag key 'k'",
        ),
        (request_of(Tags=[{"Key": "AWS:k", "Value": "1"}]), "ValidationException", "keys that start with aws:"),
        (request_of(StoppingCondition=None), "ValidationException", "Value null at 'stoppingCondition'"),
    ]
    for request, code, words in cases:
        found_code, message = await refusal(plane.call("sagemaker", "CreateTrainingJob", **request))
        assert found_code == code
        assert words in message
    assert await plane.store.get_job("job") is None


async def test_a_refused_name_leaves_no_bucket(plane, monkeypatch):
    await plane.create()
    made = []

    async def require_output_buckets(call, request, **_):
        made.append(request.name)

    monkeypatch.setattr(training_jobs, "require_output_buckets", require_output_buckets)
    assert (await refusal(plane.create()))[0] == "ResourceInUse"
    assert made == []


async def test_a_name_can_be_used_once_and_the_refusal_names_the_arn(plane):
    await plane.create()
    code, message = await refusal(plane.create())
    assert code == "ResourceInUse"
    assert message == (
        "Training job names must be unique within an AWS account and region, and a training job with this name already "
        "exists (arn:aws:sagemaker:us-west-2:000000000000:training-job/job)"
    )


@pytest.mark.parametrize("operation", ["DescribeTrainingJob", "StopTrainingJob", "DeleteTrainingJob"])
async def test_an_unknown_job_is_a_validation_error_with_the_message_of_sagemaker(plane, operation):
    answer = await refusal(plane.call("sagemaker", operation, TrainingJobName="none"))
    assert answer == ("ValidationException", "Requested resource not found.")


async def test_stopping_an_ended_job_is_refused_with_its_status(plane):
    await plane.create()
    await plane.run_to_end()
    words = "The request was rejected because the training job is in status Completed."
    assert await refusal(plane.stop()) == ("ValidationException", words)


async def test_stopping_twice_is_one_stop(plane):
    await plane.create()
    await begin(plane, HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING)
    await plane.stop()
    first = await plane.job()
    plane.clock.advance(5)
    await plane.stop()
    assert await plane.job() == first


async def test_a_stop_at_the_moment_of_the_end_does_not_change_the_end(plane, monkeypatch):
    await plane.create()
    agent = await begin(plane, HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING)
    await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
    await asyncio.gather(plane.stop(), agent.report(HostPhase.DONE))
    assert (await plane.job()).status is TrainingJobStatus.COMPLETED


@pytest.mark.parametrize("operation", ["StopTrainingJob", "UpdateTrainingJob"])
async def test_a_job_deleted_in_the_middle_of_a_call_is_not_found(plane, monkeypatch, operation):
    await plane.create()

    async def gone(name, change, **options):
        raise JobNotFound(name)

    monkeypatch.setattr(plane.store, "update_job", gone)
    answer = await refusal(plane.call("sagemaker", operation, TrainingJobName="job"))
    assert answer == ("ValidationException", "Requested resource not found.")


async def test_update_changes_the_members_that_it_names_and_keeps_the_others(plane):
    await plane.create(ProfilerConfig={"S3OutputPath": "s3://other/prof", "ProfilingIntervalInMilliseconds": 500})
    plane.clock.advance(1)
    answer = await plane.call(
        "sagemaker",
        "UpdateTrainingJob",
        TrainingJobName="job",
        ProfilerConfig={"DisableProfiler": True},
        RemoteDebugConfig={"EnableRemoteDebug": False},
    )
    assert answer["TrainingJobArn"].endswith("training-job/job")
    description = await described(plane)
    assert description["ProfilerConfig"] == {
        "S3OutputPath": "s3://other/prof",
        "ProfilingIntervalInMilliseconds": 500,
        "DisableProfiler": True,
    }
    assert description["RemoteDebugConfig"] == {"EnableRemoteDebug": False}
    assert description["LastModifiedTime"] - description["CreationTime"] == timedelta(seconds=1)


async def test_an_ended_job_without_a_warm_pool_cannot_be_updated(plane):
    await plane.create()
    await plane.run_to_end()
    call = plane.call("sagemaker", "UpdateTrainingJob", TrainingJobName="job", RemoteDebugConfig={})
    assert await refusal(call) == (
        "ValidationException",
        "The request was rejected because the training job is in status Completed.",
    )
    keep_alive = {"KeepAlivePeriodInSeconds": 60}
    call = plane.call("sagemaker", "UpdateTrainingJob", TrainingJobName="job", ResourceConfig=keep_alive)
    code, message = await refusal(call)
    assert code == "ValidationException"
    assert message.startswith("KeepAlivePeriodInSeconds cannot be updated: training job job has no warm pool.")


async def test_a_running_job_cannot_be_deleted(plane):
    await plane.create()
    code, message = await refusal(plane.delete())
    assert code == "ValidationException"
    assert message.endswith("in status InProgress; only jobs that have ended can be deleted.")


async def test_deletion_waits_for_hosts_of_a_job_that_has_just_ended(plane):
    await plane.create()
    agent = await begin(plane, HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING)
    await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
    await agent.report(HostPhase.DONE)
    deletion = asyncio.create_task(plane.delete())
    await asyncio.sleep(0)
    assert not deletion.done()
    plane.engine.end_all_agents("job")
    await plane.passes()
    await asyncio.wait_for(deletion, 5)
    assert await plane.store.get_job("job") is None


async def test_deletion_is_refused_while_hosts_are_still_being_released(plane, monkeypatch):
    await plane.create()
    agent = await begin(plane, HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING)
    await agent.report(HostPhase.EXITED, exits=(plane.exit_of(0),))
    await agent.report(HostPhase.DONE)

    async def time_passes(name, timeout_s):
        plane.clock.advance(timeout_s)

    monkeypatch.setattr(plane.hub, "wait_for_job", time_passes)
    code, message = await refusal(plane.delete())
    assert code == "ResourceInUse"
    assert "still being released; try again in a few seconds" in message


async def test_a_deleted_job_leaves_no_data_and_its_name_can_be_used_again(plane):
    await plane.create(Tags=[{"Key": "a", "Value": "b"}])
    await plane.run_to_end()
    job = await plane.job()
    await plane.delete()
    assert (await plane.logs.list_streams("job/")).streams == ()
    assert await plane.store.get_tags(job.arn) == {}
    assert plane.engine.forgotten == ["job"]
    await plane.create()


async def test_a_deletion_that_fails_can_be_repeated(plane, monkeypatch):
    await plane.create()
    await plane.run_to_end()
    delete_streams = plane.logs.delete_streams

    async def failing(prefix):
        raise OSError("disk")

    monkeypatch.setattr(plane.logs, "delete_streams", failing)
    with pytest.raises(OSError, match="disk"):
        await plane.delete()
    monkeypatch.setattr(plane.logs, "delete_streams", delete_streams)
    assert (await described(plane))["TrainingJobStatus"] == "Completed"
    await plane.delete()


async def test_a_repeated_deletion_does_not_delete_a_new_job_of_the_same_name(plane, monkeypatch):
    await plane.create()
    await plane.run_to_end()
    forget = plane.engine.forget
    is_held = asyncio.Event()
    go_on = asyncio.Event()

    async def slow(name):
        is_held.set()
        await go_on.wait()
        await forget(name)

    monkeypatch.setattr(plane.engine, "forget", slow)
    first = asyncio.create_task(plane.delete())
    await is_held.wait()
    second = asyncio.create_task(plane.delete())
    await asyncio.sleep(0)
    go_on.set()
    await first
    plane.clock.advance(1)
    with pytest.raises(WireError):
        await second
    await plane.create()
    await plane.passes()
    assert len((await plane.logs.list_streams("job/")).streams) == 1


async def test_list_filters_sorts_and_pages(plane):
    for name in ("b-two", "a-one", "c-three"):
        await plane.create(name)
        plane.clock.advance(60)
    await plane.passes()
    await plane.run_to_end("a-one")

    async def names(**params):
        answer = as_botocore_reads("ListTrainingJobs", await plane.call("sagemaker", "ListTrainingJobs", **params))
        return [item["TrainingJobName"] for item in answer["TrainingJobSummaries"]]

    assert await names() == ["c-three", "a-one", "b-two"]
    assert await names(SortBy="Name", SortOrder="Ascending") == ["a-one", "b-two", "c-three"]
    assert await names(StatusEquals="Completed") == ["a-one"]
    assert await names(NameContains="-t") == ["c-three", "b-two"]
    assert await names(CreationTimeAfter=plane.clock.now() - timedelta(seconds=130)) == ["c-three", "a-one"]
    for nothing in (
        {"WarmPoolStatusEquals": "Available"},
        {"TrainingPlanArnEquals": "arn:aws:sagemaker:us-west-2:000000000000:training-plan/p"},
        {"StatusEquals": "Deleting"},
    ):
        assert await names(**nothing) == []
    page = await plane.call("sagemaker", "ListTrainingJobs", MaxResults=2)
    rest = await plane.call("sagemaker", "ListTrainingJobs", MaxResults=2, NextToken=page["NextToken"])
    assert [item["TrainingJobName"] for item in rest["TrainingJobSummaries"]] == ["b-two"]
    assert "NextToken" not in rest
    code, message = await refusal(plane.call("sagemaker", "ListTrainingJobs", NextToken="forged"))
    assert (code, message[:18]) == ("ValidationException", "Invalid NextToken:")


async def test_warnings_and_notes_are_kept_with_the_job(plane):
    await plane.create(VpcConfig={"Subnets": ["s"], "SecurityGroupIds": ["g"]})
    assert any(warning.startswith("VpcConfig") for warning in (await plane.job()).warnings)


async def test_processes_per_host_of_the_request_are_planned_in_either_dialect(plane):
    for name, value in (("plain", "3"), ("quoted", '"3"')):
        await plane.create(
            name,
            AlgorithmSpecification={"TrainingImage": "generic:1"},
            HyperParameters={
                "sagemaker_mpi_enabled": "true",
                "sagemaker_mpi_num_of_processes_per_host": value,
                "sagemaker_program": "train.py",
            },
        )
        await plane.passes()
        assert (await plane.job(name)).plan["hosts"][0]["processes_per_host"] == 3


async def test_an_unsupported_operation_is_refused_by_name(plane):
    code, message = await refusal(plane.call("sagemaker", "CreateDomain"))
    assert (code, message) == (
        "UnknownOperationException",
        "sagemaker:CreateDomain is not supported by this service: it offers training jobs, tuning jobs and "
        "experiments, and no models, endpoints, processing jobs or pipelines.",
    )
    code, message = await refusal(plane.call("logs", "CreateLogAnomalyDetector"))
    assert message == "logs:CreateLogAnomalyDetector is not supported by this service."


@pytest.mark.parametrize("operation", ["DescribeProcessingJob", "StopProcessingJob"])
async def test_who_asks_for_the_processing_job_of_a_rule_reads_where_its_result_is(plane, operation):
    code, message = await refusal(plane.call("sagemaker", operation, ProcessingJobName="train-vanishinggradient-1"))
    assert code == "UnknownOperationException"
    assert message.startswith(f"sagemaker:{operation} is not supported by this service: it offers training jobs")
    assert "DescribeTrainingJob, in DebugRuleEvaluationStatuses and ProfilerRuleEvaluationStatuses" in message


@pytest.mark.parametrize(
    ("operation", "members"),
    [
        ("CreateLogGroup", {"logGroupName": "mine"}),
        ("CreateLogStream", {"logGroupName": "mine", "logStreamName": "s"}),
        (
            "PutLogEvents",
            {"logGroupName": "mine", "logStreamName": "s", "logEvents": [{"timestamp": 1, "message": "m"}]},
        ),
    ],
)
async def test_who_writes_to_logs_by_request_reads_that_printed_lines_are_kept(plane, operation, members):
    code, message = await refusal(plane.call("logs", operation, **members))
    assert code == "UnknownOperationException"
    assert message.startswith(f"logs:{operation} is not supported by this service: nobody writes to logs by request.")
    assert "Print the lines" in message


def test_every_listed_operation_exists_in_its_service_s_model():
    session = botocore.session.get_session()
    for service_name, operation in HANDLERS:
        model = session.get_service_model(service_name)
        assert operation in model.operation_names, operation
