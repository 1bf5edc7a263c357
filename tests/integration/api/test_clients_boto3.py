"""Unmodified boto3: the statuses of a job, lists, tags, logs, metrics, and every kind of bad input."""

import time
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest
from boto3_clients import GROUP, Clients, job_request, log_of, raw_request, refusal, unique, wait
from botocore.exceptions import ClientError

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180), pytest.mark.xdist_group("clients-boto3")]


def test_a_job_passes_every_status_and_has_logs_metrics_and_a_model(aws):
    name = unique("life")
    command = "echo one; echo loss=0.5; echo loss=0.125; echo hello > /opt/ml/model/weights; hostname"
    arn = aws.sagemaker.create_training_job(**job_request(name, command, Tags=[{"Key": "team", "Value": "a"}]))[
        "TrainingJobArn"
    ]
    assert arn.endswith(f":training-job/{name}")
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    rows = [row["Status"] for row in facts["SecondaryStatusTransitions"]]
    assert rows == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    times = [row["StartTime"] for row in facts["SecondaryStatusTransitions"]]
    assert times == sorted(times)
    assert facts["OutputDataConfig"]["KmsKeyId"] == ""
    assert facts["TrainingTimeInSeconds"] >= 1
    assert {item["MetricName"]: item["Value"] for item in facts["FinalMetricDataList"]} == {"loss": 0.125}
    uri = urlsplit(facts["ModelArtifacts"]["S3ModelArtifacts"])
    assert aws.s3.head_object(Bucket=uri.netloc, Key=uri.path[1:])["ContentLength"] > 0
    lines = log_of(aws, name)
    assert lines.index("one") < lines.index("loss=0.5") < lines.index("algo-1")
    assert aws.sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "a"}]
    now = datetime.now(UTC)
    points = aws.cloudwatch.get_metric_statistics(
        Namespace=GROUP,
        MetricName="loss",
        Dimensions=[{"Name": "TrainingJobName", "Value": name}],
        StartTime=now - timedelta(minutes=10),
        EndTime=now + timedelta(minutes=1),
        Period=3600,
        Statistics=["Average", "Maximum"],
    )["Datapoints"]
    assert [point["Maximum"] for point in points] == [0.5]


def test_a_failing_program_names_its_exit_code_and_the_job_keeps_its_model(aws):
    name = unique("fails")
    aws.sagemaker.create_training_job(**job_request(name, "touch /opt/ml/model/partial; exit 9"))
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Failed"
    assert facts["FailureReason"].startswith("AlgorithmError")
    assert "exit code: 9" in facts["FailureReason"]
    assert "Uploading" in [row["Status"] for row in facts["SecondaryStatusTransitions"]]


@pytest.mark.long(10)
def test_stopping_signals_the_program_keeps_its_model_and_ends_stopped(aws):
    name = unique("stops")
    command = (
        "trap 'echo got TERM; echo saved > /opt/ml/model/saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    )
    aws.sagemaker.create_training_job(**job_request(name, command))
    wait(aws, name, until=("Training",))
    deadline = time.monotonic() + 20
    while "ready" not in log_of(aws, name) and time.monotonic() < deadline:
        time.sleep(0.1)
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    facts = wait(aws, name)
    assert (facts["TrainingJobStatus"], facts["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert "got TERM" in log_of(aws, name)
    assert "ModelArtifacts" in facts
    code, message = refusal(aws.sagemaker.stop_training_job, TrainingJobName=name)
    assert (code, "is in status Stopped" in message) == ("ValidationException", True)


def test_max_runtime_stops_a_program_that_runs_too_long(aws):
    name = unique("overtime")
    request = job_request(name, "sleep 60")
    request["StoppingCondition"] = {"MaxRuntimeInSeconds": 2}
    aws.sagemaker.create_training_job(**request)
    facts = wait(aws, name)
    assert (facts["TrainingJobStatus"], facts["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")


@pytest.mark.long(10)
def test_two_jobs_at_once_both_listen_on_port_7777(aws):
    listen = (
        "import socket,time; s=socket.create_server(('0.0.0.0',7777)); print('listening', flush=True); time.sleep(4)"
    )
    names = [unique("port-a"), unique("port-b")]
    for name in names:
        aws.sagemaker.create_training_job(**job_request(name, f'python3 -c "{listen}"'))
    facts = [wait(aws, name) for name in names]
    assert [item["TrainingJobStatus"] for item in facts] == ["Completed", "Completed"]
    training = [
        next(row for row in item["SecondaryStatusTransitions"] if row["Status"] == "Training") for item in facts
    ]
    assert training[0]["StartTime"] < training[1]["EndTime"], "they ran at the same time"
    assert training[1]["StartTime"] < training[0]["EndTime"]


def test_jobs_without_capacity_wait_in_order_and_too_large_ones_are_refused(aws):
    blocker, waiting, behind = unique("blocker"), unique("waiting"), unique("behind")
    request = job_request(blocker, "sleep 30")
    request["ResourceConfig"]["InstanceCount"] = 6
    aws.sagemaker.create_training_job(**request)
    wait(aws, blocker, until=("Training", "Downloading"))
    request = job_request(waiting, "true")
    request["ResourceConfig"]["InstanceCount"] = 8
    aws.sagemaker.create_training_job(**request)
    aws.sagemaker.create_training_job(**job_request(behind, "true"))
    facts = wait(aws, waiting, until=("Pending",))
    reason = facts["SecondaryStatusTransitions"][-1]["StatusMessage"]
    assert f"{blocker} holds 6" in reason
    facts = aws.sagemaker.describe_training_job(TrainingJobName=behind)
    assert waiting in facts["SecondaryStatusTransitions"][-1]["StatusMessage"], "nobody overtakes"
    for name in (behind, waiting, blocker):
        aws.sagemaker.stop_training_job(TrainingJobName=name)
    for name in (behind, waiting, blocker):
        assert wait(aws, name)["TrainingJobStatus"] == "Stopped"
    request = job_request(unique("never"), "true")
    request["ResourceConfig"]["InstanceCount"] = 9
    code, message = refusal(aws.sagemaker.create_training_job, **request)
    assert code == "ResourceLimitExceeded"
    assert "request delta of 9 Instances" in message


@pytest.mark.parametrize("instance_type", ["ml.p4d.24xlarge", "ml.unknown.1x", "local", "local_gpu", "my-box"])
@pytest.mark.long
def test_any_instance_type_is_accepted_and_explained(aws, service, instance_type):
    name = unique("type")
    request = job_request(name, "echo $SM_CURRENT_INSTANCE_TYPE")
    request["ResourceConfig"]["InstanceType"] = instance_type
    aws.sagemaker.create_training_job(**request)
    assert wait(aws, name)["TrainingJobStatus"] == "Completed"
    assert instance_type in service.clary("describe", name).stdout


def test_lists_filter_sort_and_page(aws):
    prefix = unique("list")
    names = [f"{prefix}-{index}" for index in range(5)]
    for name in names:
        aws.sagemaker.create_training_job(**job_request(name, "true"))
    for name in names:
        wait(aws, name)
    pages = list(
        aws.sagemaker.get_paginator("list_training_jobs").paginate(
            NameContains=prefix, SortBy="Name", SortOrder="Ascending", PaginationConfig={"PageSize": 2}
        )
    )
    assert [len(page["TrainingJobSummaries"]) for page in pages] == [2, 2, 1]
    assert [item["TrainingJobName"] for page in pages for item in page["TrainingJobSummaries"]] == names
    found = aws.sagemaker.list_training_jobs(NameContains=prefix, StatusEquals="Failed")
    assert found["TrainingJobSummaries"] == []
    code, _ = refusal(aws.sagemaker.list_training_jobs, NextToken="forged")
    assert code == "ValidationException"


def test_tags_are_added_replaced_and_removed(aws):
    name = unique("tags")
    arn = aws.sagemaker.create_training_job(**job_request(name, "true"))["TrainingJobArn"]
    aws.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}])
    aws.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "a", "Value": "3"}])
    aws.sagemaker.delete_tags(ResourceArn=arn, TagKeys=["b"])
    assert aws.sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "a", "Value": "3"}]
    wait(aws, name)


def test_an_ended_job_can_be_deleted_and_its_name_used_again(aws):
    name = unique("again")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 2"))
    code, _ = refusal(aws.sagemaker.delete_training_job, TrainingJobName=name)
    assert code == "ValidationException"
    code, message = refusal(aws.sagemaker.create_training_job, **job_request(name, "true"))
    assert code == "ResourceInUse"
    assert f"training-job/{name}" in message
    wait(aws, name)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            aws.sagemaker.delete_training_job(TrainingJobName=name)
            break
        except ClientError:
            time.sleep(0.2)
    code, message = refusal(aws.sagemaker.describe_training_job, TrainingJobName=name)
    assert (code, message) == ("ValidationException", "Requested resource not found.")
    aws.sagemaker.create_training_job(**job_request(name, "true"))
    assert wait(aws, name)["TrainingJobStatus"] == "Completed"


def test_update_training_job_changes_the_mutable_settings(aws):
    name = unique("update")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 3"))
    aws.sagemaker.update_training_job(TrainingJobName=name, ProfilerConfig={"DisableProfiler": True})
    facts = aws.sagemaker.describe_training_job(TrainingJobName=name)
    assert facts["ProfilingStatus"] == "Disabled"
    wait(aws, name)


@pytest.mark.long
def test_exceeding_the_memory_limit_is_named_in_the_failure_reason(aws):
    name = unique("memory")
    request = job_request(name, 'python3 -c "x = bytearray(8 << 30); print(len(x))"')
    request["ResourceConfig"]["InstanceType"] = "ml.t3.medium"
    aws.sagemaker.create_training_job(**request)
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Failed"
    assert "memory" in facts["FailureReason"].lower(), facts["FailureReason"]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"TrainingJobName": "bad_name!"}, "ValidationException", "regular expression pattern"),
        ({"TrainingJobName": "x" * 64}, "ValidationException", "less than or equal to 63"),
        ({"RetryStrategy": {"MaximumRetryAttempts": 31}}, "ValidationException", "less than or equal to 30"),
        ({"EnableManagedSpotTraining": True}, "ValidationException", "MaxWaitTimeInSeconds"),
        (
            {"StoppingCondition": {"MaxRuntimeInSeconds": 10, "MaxWaitTimeInSeconds": 20}},
            "ValidationException",
            "EnableManagedSpotTraining",
        ),
        ({"Environment": {"1BAD": "x"}}, "ValidationException", "regular expression pattern"),
        ({"HyperParameters": {"a": "x" * 2501}}, "ValidationException", "2500"),
        (
            {
                "InputDataConfig": [
                    {
                        "ChannelName": "train",
                        "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://no-such-bucket/x"}},
                    }
                ]
            },
            "ValidationException",
            "No S3 objects found under S3 URL",
        ),
        (
            {
                "AlgorithmSpecification": {
                    "TrainingImage": "registry.example/pytorch-training:2.8.0-gpu-py312",
                    "TrainingInputMode": "File",
                },
                "HyperParameters": {
                    "sagemaker_program": "train.py",
                    "sagemaker_training_compiler_enabled": "true",
                    "sagemaker_distributed_dataparallel_enabled": "true",
                },
            },
            "ValidationException",
            "compiler",
        ),
    ],
)
def test_invalid_requests_are_refused_with_errors_like_those_of_aws(aws, change, code, words):
    got_code, message = refusal(aws.sagemaker.create_training_job, **{**job_request(unique("bad"), "true"), **change})
    assert got_code == code
    assert words in message


def test_an_unknown_image_is_refused_with_the_settings_line_to_add(aws):
    request = job_request(unique("image"), "true")
    request["AlgorithmSpecification"]["TrainingImage"] = "nobody/knows-this:7"
    code, message = refusal(aws.sagemaker.create_training_job, **request)
    assert code == "ValidationException"
    assert "[images]" in message
    assert "knows-this:7" in message


@pytest.mark.parametrize(
    ("overrides", "codes"),
    [
        ({"aws_secret_access_key": "wrong"}, {"InvalidSignatureException"}),
        ({"aws_access_key_id": "AKIANOBODYKNOWSTHIS0"}, {"UnrecognizedClientException"}),
    ],
)
def test_wrong_keys_are_refused(service, overrides, codes):
    stranger = Clients(service, **overrides)
    code, _ = refusal(stranger.sagemaker.list_training_jobs)
    assert code in codes
    code, _ = refusal(stranger.s3.list_buckets)
    assert code in ("SignatureDoesNotMatch", "InvalidAccessKeyId")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: SageMaker.ListTrainingJobs\r\n"
            b"Content-Type: application/x-amz-json-1.1\r\nContent-Length: 2\r\n\r\n{}",
            b"403",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: SageMaker.NoSuchThing\r\n"
            b"Content-Type: application/x-amz-json-1.1\r\nContent-Length: 2\r\n\r\n{}",
            b"40",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: SageMaker.ListTrainingJobs\r\n"
            b"Content-Type: application/x-amz-json-1.1\r\nContent-Length: 999999999\r\n\r\n",
            b"413",
        ),
        (b"\x00\x01\x02 garbage\r\n\r\n", b"400"),
    ],
)
def test_malformed_http_is_refused_and_the_service_keeps_running(service, aws, request_bytes, status):
    answer = raw_request(service, request_bytes)
    assert b" " + status in answer.split(b"\r\n", 1)[0], answer[:300]
    assert aws.sagemaker.list_training_jobs()["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_unsupported_operations_are_refused_by_name(aws):
    code, message = refusal(lambda: aws.sagemaker.describe_endpoint(EndpointName="e"))
    assert code == "UnknownOperationException"
    assert "DescribeEndpoint" in message


def test_lists_of_unsupported_kinds_are_empty(aws):
    assert aws.sagemaker.list_endpoints()["Endpoints"] == []
    assert list(aws.sagemaker.get_paginator("list_processing_jobs").paginate().search("ProcessingJobSummaries[]")) == []
