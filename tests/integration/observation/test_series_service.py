"""Series in a real service: batches of an agent, kills of the service between batches, every way to read series.

The service's own agents take no measurements (metrics_interval_s = 0), so the only rows are those that the test sends.
"""

import json
import os
import signal
import sqlite3
import time
import urllib.error
import urllib.request
from contextlib import closing
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest
from boto3_clients import Clients, job_request, unique, wait
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from prometheus_client.parser import text_string_to_metric_families
from running_service import SETTINGS, start_service

from clary.base.plain import to_plain
from clary.contract.metric_samples import SampleBatch

pytestmark = [pytest.mark.timeout(300), pytest.mark.clients, pytest.mark.xdist_group("series")]

NAMESPACE = "/aws/sagemaker/TrainingJobs"
STEP_MS = 500


class Agent:
    """Sends batches of a host as its agent does, with the attempt's token."""

    def __init__(self, service, job):
        self.service, self.job = service, job
        with closing(sqlite3.connect(f"file:{service.home / 'clary.db'}?mode=ro", uri=True)) as database:
            (document,) = database.execute("SELECT document FROM jobs WHERE name = ?", (job,)).fetchone()
        self.token = json.loads(document)["plan"]["agent_token"]
        self.begin_ms = int(time.time()) // 60 * 60_000 - 600_000  # time of row 0: a full minute, ten minutes ago
        self.next_row = 0

    def measure(self, num_rows):
        """Send the next rows; return the value of the last row."""
        self.next_row = self.send(self.next_row, num_rows)
        return float(self.next_row - 1)

    def send(self, first_row, num_rows, *, names=("host/cpu_percent", "gpu-0/power_w"), token=None, num_dropped=0):
        """Send rows whose values are their numbers; return the number of the next row."""
        rows = range(first_row, first_row + num_rows)
        batch = SampleBatch(
            first_row=first_row,
            at_ms=tuple(self.begin_ms + STEP_MS * row for row in rows),
            names=names,
            columns=tuple(tuple(float(row) for row in rows) for _ in names),
            num_dropped=num_dropped,
        )
        body = json.dumps(to_plain(batch)).encode()
        path = f"/clary/v1/agents/{self.job}/1/algo-1/samples"
        answer = fetch(self.service, path, token=token or self.token, body=body)
        return json.loads(answer)["next_row"]


def fetch(service, path, *, token=None, body=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = json.loads((service.home / "run" / "service.json").read_text())["url"] + path
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body, headers=headers), timeout=30) as answer:
            return answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            raise Refused(refused.code, refused.read().decode()) from None


class Refused(Exception):
    """A response with a status other than 200."""

    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status = status


def status_of(service, path, **options):
    try:
        fetch(service, path, **options)
    except Refused as refused:
        return refused.status
    return 200


@pytest.fixture(scope="module")
def own_service(tmp_path_factory):
    service = start_service(tmp_path_factory.mktemp("series"), SETTINGS, CLARY_METRICS_INTERVAL_S="0")
    yield service
    service.clary("down", check=False)
    assert "left behind" not in service.clary("doctor", check=False).stdout


@pytest.fixture(scope="module")
def aws(own_service):
    return Clients(own_service)


@pytest.fixture(scope="module")
def agent(own_service, aws):
    return running_job(own_service, aws, "measured")


def running_job(service, aws, name):
    name = unique(name)
    aws.sagemaker.create_training_job(**job_request(name, "sleep 250"))
    wait(aws, name, until=("Training",))
    return Agent(service, name)


def span(agent):
    start = datetime.fromtimestamp(agent.begin_ms / 1000, UTC)
    return {"StartTime": start, "EndTime": start + timedelta(minutes=10)}


def host_metric(agent, metric="CPUUtilization"):
    dimensions = [{"Name": "Host", "Value": f"{agent.job}/algo-1"}]
    return {"Namespace": NAMESPACE, "MetricName": metric, "Dimensions": dimensions}


def test_a_service_killed_between_batches_has_every_row_once(own_service, aws):
    agent = running_job(own_service, aws, "survivor")
    assert agent.send(0, 100) == 100
    os.kill(json.loads((own_service.home / "run" / "service.json").read_text())["pid"], signal.SIGKILL)
    own_service.clary("up")
    assert agent.send(0, 100) == 100  # the agent got no response, and sends the rows again
    assert agent.send(100, 140) == 240
    assert agent.send(100, 140) == 240
    assert agent.send(600, 120, num_dropped=360) == 720
    points = aws.cloudwatch.get_metric_statistics(
        **host_metric(agent), **span(agent), Period=60, Statistics=["SampleCount", "Average", "Minimum", "Maximum"]
    )["Datapoints"]
    found = {
        int(point["Timestamp"].timestamp() * 1000 - agent.begin_ms) // 60_000: (
            point["SampleCount"],
            point["Average"],
            point["Minimum"],
            point["Maximum"],
        )
        for point in points
    }
    assert found == {0: (120, 59.5, 0, 119), 1: (120, 179.5, 120, 239), 5: (120, 659.5, 600, 719)}
    page = json.loads(own_service.clary("metrics", agent.job, "--json", "--since", "1h").stdout)
    assert (page["num_dropped"], page["damaged"]) == (360, [])


def test_batches_without_a_valid_token_and_bad_batches_are_refused(own_service, agent):
    with pytest.raises(Refused, match="403"):
        agent.send(0, 1, token="wrong")
    with pytest.raises(Refused, match=r"400: .*SCOPE/QUANTITY"):
        agent.send(0, 1, names=("../x",))


def test_boto3_lists_the_metrics_of_a_host_and_reads_several_at_once(aws, agent):
    agent.measure(130)
    metrics = aws.cloudwatch.list_metrics(Namespace=NAMESPACE, Dimensions=host_metric(agent)["Dimensions"])["Metrics"]
    assert [metric["MetricName"] for metric in metrics] == ["CPUUtilization"]
    stat = {"Metric": host_metric(agent), "Period": 300, "Stat": "Maximum"}
    queries = [{"Id": "most", "MetricStat": stat}, {"Id": "total", "MetricStat": {**stat, "Stat": "Sum"}}]
    answer = aws.cloudwatch.get_metric_data(MetricDataQueries=queries, **span(agent), ScanBy="TimestampAscending")
    most, total = answer["MetricDataResults"]
    assert (most["Id"], most["StatusCode"], total["Id"]) == ("most", "Complete", "total")
    assert (most["Values"][-1], sum(total["Values"])) == (agent.next_row - 1, sum(range(agent.next_row)))
    with pytest.raises(ClientError, match="does not support Expression") as refused:
        aws.cloudwatch.get_metric_data(MetricDataQueries=[{"Id": "e", "Expression": "most * 2"}], **span(agent))
    assert refused.value.response["Error"]["Code"] == "ValidationError"


def test_clients_with_the_query_protocol_read_the_same_values(own_service, aws, agent):
    """One signed request with the serialiser and parser of boto3 up to 1.34."""
    agent.measure(130)
    stat = {"Metric": host_metric(agent), "Period": 60, "Stat": "Average"}
    asked = {"MetricDataQueries": [{"Id": "cpu", "MetricStat": stat}], **span(agent)}
    model = aws.cloudwatch.meta.service_model.operation_model("GetMetricData")
    form = create_serializer("query").serialize_to_request(asked, model)["body"]
    variables = own_service.environment
    request = AWSRequest(
        "POST",
        variables["AWS_ENDPOINT_URL"] + "/",
        data=urlencode(form).encode(),
        headers={"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"},
    )
    keys = Credentials(variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"])
    SigV4Auth(keys, "monitoring", variables["AWS_REGION"]).add_auth(request)
    prepared = request.prepare()
    wire = urllib.request.Request(prepared.url, data=prepared.body, headers=dict(prepared.headers.items()))
    with urllib.request.urlopen(wire, timeout=30) as answer:
        response = {"status_code": answer.status, "headers": dict(answer.headers), "body": answer.read()}
    parsed = create_parser("query").parse(response, model.output_shape)
    spoken = aws.cloudwatch.get_metric_data(**asked)
    assert parsed["MetricDataResults"] == spoken["MetricDataResults"]
    assert parsed["MetricDataResults"][0]["Values"]


def test_prometheus_reads_the_last_values_with_its_own_token(own_service, agent):
    last = agent.measure(10)
    token = own_service.clary("metrics", "--token").stdout.strip()
    assert [status_of(own_service, "/metrics", token=given) for given in (None, "wrong")] == [403, 403]
    text = fetch(own_service, "/metrics", token=token).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    values = {sample.labels["training_job"]: sample for sample in families["clary_host_cpu_percent"].samples}
    assert (values[agent.job].labels["host"], values[agent.job].value) == ("algo-1", last)
    assert families["clary_gpu_power_w"].samples[0].labels["gpu"] == "0"
    assert {"training_job": agent.job, "status": "InProgress", "secondary_status": "Training"} in [
        sample.labels for sample in families["clary_job_state"].samples
    ]
    # The token is valid for this page only.
    assert status_of(own_service, f"/clary/v1/jobs/{agent.job}", token=token) == 403


def test_a_bucket_may_be_called_metrics(aws):
    aws.s3.create_bucket(Bucket="metrics", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    aws.s3.put_object(Bucket="metrics", Key="k", Body=b"v")
    assert [item["Key"] for item in aws.s3.list_objects_v2(Bucket="metrics")["Contents"]] == ["k"]
    aws.s3.delete_object(Bucket="metrics", Key="k")
    aws.s3.delete_bucket(Bucket="metrics")


def test_clary_metrics_prints_a_table(own_service, agent):
    agent.measure(10)
    lines = own_service.clary("metrics", agent.job, "--since", "1h", "--host", "algo-1").stdout.splitlines()
    assert lines[0].startswith(f"{agent.job}  InProgress, ")
    assert lines[2].split() == ["HOST", "METRIC", "LAST", "MEAN", "MAX"]
    assert [line.split("  ")[0] for line in lines[3:]] == ["algo-1"]
    missing = own_service.clary("metrics", "no-such-job", check=False)
    assert (missing.returncode, "no training job" in missing.stderr) == (3, True)


@pytest.mark.long
def test_series_are_deleted_with_their_job(own_service, aws):
    agent = running_job(own_service, aws, "deleted")
    agent.measure(10)
    aws.sagemaker.stop_training_job(TrainingJobName=agent.job)
    wait(aws, agent.job)
    aws.sagemaker.delete_training_job(TrainingJobName=agent.job)  # waits until the hosts are released
    points = aws.cloudwatch.get_metric_statistics(
        **host_metric(agent), **span(agent), Period=60, Statistics=["SampleCount"]
    )
    assert points["Datapoints"] == []
    with pytest.raises(Refused, match="410"):
        agent.measure(1)
