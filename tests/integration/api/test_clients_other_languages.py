"""Clients as the AWS SDKs of other languages write their requests, made of botocore.

Newer SDKs for Go, Java, PHP and JavaScript speak RPC v2 CBOR with CloudWatch; those for JavaScript (v2) and PHP do not
sign the content type.
"""

from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest
from boto3_clients import GROUP, Clients, job_request, unique, wait
from botocore.auth import SIGNED_HEADERS_BLACKLIST
from botocore.exceptions import ClientError

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180), pytest.mark.xdist_group("clients-boto3")]


@pytest.fixture(scope="module")
def cbor(service):
    """A client of CloudWatch that speaks CBOR, though botocore prefers JSON; `sent` has its requests."""
    with mock.patch("botocore.model.PRIORITY_ORDERED_SUPPORTED_PROTOCOLS", ("smithy-rpc-v2-cbor",)):
        client = Clients(service).cloudwatch
    client.sent = []
    client.meta.events.register("before-send.cloudwatch", lambda request, **_: client.sent.append(request))
    return client


@pytest.fixture(scope="module")
def job(service):
    aws, name = Clients(service), unique("languages")
    aws.sagemaker.create_training_job(**job_request(name, "echo loss=0.5; echo loss=0.125"))
    assert wait(aws, name)["TrainingJobStatus"] == "Completed"
    return name


def test_a_client_that_speaks_cbor_puts_and_reads_metrics(cbor, aws, job):
    dimensions = [{"Name": "TrainingJobName", "Value": job}, {"Name": "phase", "Value": "größe"}]
    now = datetime.now(UTC).replace(microsecond=0)
    data = [
        {"MetricName": "speed", "Dimensions": dimensions, "Timestamp": now - timedelta(seconds=offset), **values}
        for offset, values in ((0, {"Value": 1.5}), (1, {"Value": 2}), (2, {"Values": [0.25, 4], "Counts": [1, 3]}))
    ]
    put = cbor.put_metric_data(Namespace="My/App", MetricData=data)
    assert put["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert put["ResponseMetadata"]["HTTPHeaders"]["smithy-protocol"] == "rpc-v2-cbor"
    span = {"StartTime": now - timedelta(hours=1), "EndTime": now + timedelta(minutes=1)}
    asked = {
        "Namespace": "My/App",
        "MetricName": "speed",
        "Dimensions": dimensions,
        "Period": 7200,
        "Statistics": ["Sum", "SampleCount", "Minimum", "Maximum"],
        **span,
    }
    answer = cbor.get_metric_statistics(**asked)
    points = answer["Datapoints"]
    assert sum(point["Sum"] for point in points) == 15.75
    assert sum(point["SampleCount"] for point in points) == 6.0
    assert (min(point["Minimum"] for point in points), max(point["Maximum"] for point in points)) == (0.25, 4.0)
    assert points == aws.cloudwatch.get_metric_statistics(**asked)["Datapoints"]
    metric = {"Namespace": GROUP, "MetricName": "loss", "Dimensions": dimensions[:1]}
    queries = [{"Id": "loss", "MetricStat": {"Metric": metric, "Period": 7200, "Stat": "Maximum"}}]
    (series,) = cbor.get_metric_data(MetricDataQueries=queries, **span)["MetricDataResults"]
    assert max(series["Values"]) == 0.5
    listed = cbor.get_paginator("list_metrics").paginate(Namespace="My/App", Dimensions=dimensions[:1])
    assert [metric["MetricName"] for page in listed for metric in page["Metrics"]] == ["speed"]
    paths = {request.url.partition("/service/")[2] for request in cbor.sent}
    assert "GraniteServiceVersion20100801/operation/PutMetricData" in paths
    assert {request.headers["smithy-protocol"] for request in cbor.sent} == {b"rpc-v2-cbor"}


def test_a_large_body_of_cbor_may_be_compressed(cbor, job):
    dimensions = [{"Name": "TrainingJobName", "Value": job}]
    data = [{"MetricName": f"packed-{number}", "Dimensions": dimensions, "Value": number} for number in range(400)]
    cbor.put_metric_data(Namespace="My/Packed", MetricData=data)
    assert cbor.sent[-1].headers["Content-Encoding"] == b"gzip"


def test_errors_reach_a_client_that_speaks_cbor_with_code_and_message(cbor, aws):
    span = {"StartTime": datetime(2026, 1, 1, tzinfo=UTC), "EndTime": datetime(2026, 1, 2, tzinfo=UTC)}
    asked = [
        ("put_metric_data", {"Namespace": "AWS/Mine", "MetricData": [{"MetricName": "a", "Value": 1}]}),
        ("put_metric_data", {"Namespace": "Mine", "MetricData": [{"MetricName": "a", "Value": 1}]}),
        ("get_metric_statistics", {"Namespace": "N", "MetricName": "a", "Period": 60, **span}),
        ("get_metric_data", {"MetricDataQueries": [{"Id": "e", "Expression": "1 + 1"}], **span}),
        ("describe_alarms", {}),
    ]
    for name, params in asked:
        with pytest.raises(ClientError) as told:
            getattr(cbor, name)(**params)
        with pytest.raises(ClientError) as spoken:
            getattr(aws.cloudwatch, name)(**params)
        assert told.value.response["Error"] == spoken.value.response["Error"], name
        assert type(told.value).__name__ == type(spoken.value).__name__
        assert told.value.response["Error"]["Message"]
        assert told.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
        assert told.value.response["ResponseMetadata"]["RequestId"]


def test_wrong_keys_reach_a_client_that_speaks_cbor(service):
    with mock.patch("botocore.model.PRIORITY_ORDERED_SUPPORTED_PROTOCOLS", ("smithy-rpc-v2-cbor",)):
        client = Clients(service, aws_secret_access_key="guess").cloudwatch
    with pytest.raises(ClientError, match="does not match the signature you provided") as refused:
        client.list_metrics()
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_clients_that_do_not_sign_the_content_type_call_every_service(service, job):
    aws, seen = Clients(service), []
    unsigned = [*SIGNED_HEADERS_BLACKLIST, "content-type"]
    for name in ("sagemaker", "logs", "sts", "iam", "cloudwatch"):
        getattr(aws, name).meta.events.register("before-send", lambda request, **_: seen.append(request.headers))
    with mock.patch("botocore.auth.SIGNED_HEADERS_BLACKLIST", unsigned):
        assert aws.sagemaker.describe_training_job(TrainingJobName=job)["TrainingJobStatus"] == "Completed"
        streams = aws.logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{job}/")["logStreams"]
        assert len(streams) == 1
        assert aws.sts.get_caller_identity()["Account"]
        assert aws.iam.get_role(RoleName="any")["Role"]["RoleName"] == "any"
        assert "Metrics" in aws.cloudwatch.list_metrics(Namespace=GROUP)
        aws.sagemaker.add_tags(
            ResourceArn=aws.sagemaker.describe_training_job(TrainingJobName=job)["TrainingJobArn"],
            Tags=[{"Key": "language", "Value": "PHP"}],
        )
    assert len(seen) == 7
    for headers in seen:
        assert headers["Content-Type"]
        assert b"content-type" not in headers["Authorization"]
