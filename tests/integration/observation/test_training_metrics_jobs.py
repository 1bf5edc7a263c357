"""A real job reports its training in files and by a status, all visible while it runs."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from boto3_clients import Clients, job_request, log_of, unique, wait
from program_jobs import BUCKET, members_of, object_at, script_request
from training_pages import page_of
from training_program import PIXEL, STEPS

from needs import python_of

pytestmark = [pytest.mark.clients, pytest.mark.timeout(360), pytest.mark.xdist_group("training-metrics-jobs")]

LIMIT_S = 120
HF_PYTHON = python_of("hf")
PROGRAM = Path(__file__).with_name("training_program.py").read_text()


def look_until(look, wanted, *, timeout_s=LIMIT_S):
    """Call `look` until `wanted` holds or the time is over; return the last result."""
    deadline = time.monotonic() + timeout_s
    while not wanted(found := look()) and time.monotonic() < deadline:
        time.sleep(0.3)
    return found


@pytest.mark.long
def test_a_programs_training_reports_are_visible_during_the_run_and_afterwards(service):
    aws, name = Clients(service), unique("learning")
    request = script_request(aws, name, {"train.py": PROGRAM}, Environment={"LONGEST_PAUSE_S": str(LIMIT_S)})
    request["TensorBoardOutputConfig"] = {"S3OutputPath": f"s3://{BUCKET}/boards"}
    request["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "done", "Regex": r"(\d+)/40 "}]
    aws.sagemaker.create_training_job(**request)

    running = look_until(
        lambda: aws.sagemaker.describe_training_job(TrainingJobName=name),
        lambda facts: "ProgressInfo" in facts or facts["TrainingJobStatus"] != "InProgress",
    )
    assert running["TrainingJobStatus"] == "InProgress", running.get("FailureReason")
    told = look_until(
        lambda: page_of(service, name), lambda facts: (facts["progress"] or {}).get("source") == "kubeflow"
    )["progress"]
    assert (told["done"], told["total"], told["unit"], told["percent"]) == (STEPS / 2, STEPS, "steps", 50.0)
    assert 0 <= told["eta_s"] <= 9
    info = aws.sagemaker.describe_training_job(TrainingJobName=name)["ProgressInfo"]
    assert info == {"CurrentEpoch": 2, "MaxEpoch": 2, "CurrentStep": 0, "TotalStepCountPerEpoch": STEPS // 2}
    early = look_until(
        lambda: {one["name"]: one for one in page_of(service, name, "training")["metrics"]},
        lambda metrics: {"train/loss", "throughput", "accuracy", "grad_norm"} <= metrics.keys(),
    )
    assert early["train/loss"]["step"] == STEPS // 2
    assert page_of(service, name)["status"] == "InProgress", "all of this was seen while it ran"
    (tree,) = (service.home / "jobs" / name).rglob("ml/output/tensorboard")
    (tree.parent / "seen").touch()

    facts = wait(aws, name, timeout_s=LIMIT_S)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    final = {metric["MetricName"]: metric["Value"] for metric in facts["FinalMetricDataList"]}
    assert final["train/loss"] == pytest.approx(1 / STEPS)
    assert final["throughput"] == 100 + STEPS
    assert final["accuracy"] == 1.0
    assert final["grad_norm"] == 0.25
    assert final["done"] == STEPS
    late = {one["name"]: one for one in page_of(service, name, "training")["metrics"]}
    assert {key: late[key]["num_values"] for key in ("train/loss", "throughput", "accuracy", "grad_norm")} == {
        "train/loss": STEPS,
        "throughput": STEPS,
        "accuracy": STEPS,
        "grad_norm": 1,
    }
    points = page_of(service, name, "training?name=train/loss")["points"]
    assert [point[1] for point in points] == list(range(1, STEPS + 1))
    assert page_of(service, name)["progress"]["percent"] == 100.0

    statistics = aws.cloudwatch.get_metric_statistics(
        Namespace="/aws/sagemaker/TrainingJobs",
        MetricName="accuracy",
        Dimensions=[{"Name": "TrainingJobName", "Value": name}],
        StartTime=facts["CreationTime"],
        EndTime=facts["LastModifiedTime"].replace(year=facts["LastModifiedTime"].year + 1),
        Period=86400 * 400,
        Statistics=["Maximum", "SampleCount"],
    )["Datapoints"]
    assert max(point["Maximum"] for point in statistics) == 1.0
    assert sum(point["SampleCount"] for point in statistics) == STEPS

    tags = {(one["kind"], one["tag"]) for one in page_of(service, name, "tensorboard")["tags"]}
    assert tags == {("histogram", "weights"), ("image", "sample")}
    (picture,) = page_of(service, name, "tensorboard?kind=image&tag=sample")["pictures"]
    assert page_of(service, name, f"tensorboard?image={picture['id']}", kind=bytes) == PIXEL
    (weights,) = page_of(service, name, "tensorboard?kind=histogram&tag=weights")["pictures"]
    assert weights["buckets"] == [[0.0, 1.0, 5.0], [1.0, 2.0, 7.0]]

    key = f"boards/{name}/tensorboard-output/run/events.out.tfevents.1.algo-1"
    mirrored = aws.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    assert mirrored.count(b"train/loss") == STEPS
    results = members_of(object_at(aws, facts["ModelArtifacts"]["S3ModelArtifacts"].replace("model.tar", "output.tar")))
    assert [path for path in results if path.endswith("metrics/accuracy")]

    table = service.clary("metrics", name, "--training").stdout
    assert "train/loss" in table
    assert ["weights", "histogram", "0", "1", "1"] in [line.split() for line in table.splitlines()]
    assert "100 %" in service.clary("describe", name).stdout


@pytest.mark.needs("hf")
@pytest.mark.long
def test_the_trainer_of_transformers_reports_its_progress_without_changes(service):
    aws, name = Clients(service), unique("trainer")
    program = Path(__file__).with_name("huggingface_progress_program.py")
    aws.sagemaker.create_training_job(**job_request(name, f"{HF_PYTHON} {program}"))
    facts = wait(aws, name, timeout_s=LIMIT_S * 2)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    progress = page_of(service, name)["progress"]
    assert (progress["source"], progress["done"], progress["total"], progress["percent"]) == ("kubeflow", 8, 8, 100.0)
    assert (facts["ProgressInfo"]["CurrentEpoch"], facts["ProgressInfo"]["MaxEpoch"]) == (2, 2)
    metrics = {one["name"]: one for one in page_of(service, name, "training")["metrics"]}
    assert {"loss", "grad_norm", "learning_rate"} <= metrics.keys()


PUTS = """
import boto3
client = boto3.client("cloudwatch")
watch = lambda request, **_: print("sent", request.headers.get("Content-Encoding"), flush=True)
client.meta.events.register("before-send.cloudwatch.PutMetricData", watch)
phase = [{"Name": "phase", "Value": "validation" * 5}]
data = [{"MetricName": f"time-{n}", "Value": n, "Unit": "Seconds", "Dimensions": phase} for n in range(200)]
client.put_metric_data(Namespace="My/App", MetricData=[{**datum, "StorageResolution": 1} for datum in data])
client.put_metric_data(Namespace="My/App", MetricData=[{"MetricName": "small", "Value": 1.5}])
"""


@pytest.mark.needs("sdk2")
def test_a_program_puts_metrics_with_boto3_which_packs_large_bodies(service):
    aws, name = Clients(service), unique("puts")
    request = script_request(aws, name, {"train.py": PUTS})
    request["AlgorithmSpecification"]["TrainingImage"] = "team/remote:1"  # its environment has boto3
    aws.sagemaker.create_training_job(**request)
    facts = wait(aws, name, timeout_s=LIMIT_S)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    assert [line for line in log_of(aws, name) if line.startswith("sent")] == ["sent b'gzip'", "sent None"]
    job = [{"Name": "TrainingJobName", "Value": name}]
    pages = aws.cloudwatch.get_paginator("list_metrics").paginate(Namespace="My/App", Dimensions=job)
    listed = {metric["MetricName"]: metric["Dimensions"] for page in pages for metric in page["Metrics"]}
    assert listed["small"] == job
    assert len(listed) == 201
    now = datetime.now(UTC)
    span = {"StartTime": now - timedelta(minutes=10), "EndTime": now + timedelta(minutes=1)}
    (point,) = aws.cloudwatch.get_metric_statistics(
        Namespace="My/App",
        MetricName="time-199",
        Dimensions=listed["time-199"],
        Period=3600,
        Statistics=["Sum"],
        **span,
    )["Datapoints"]
    assert (point["Sum"], point["Unit"]) == (199.0, "Seconds")
    everything = aws.cloudwatch.get_paginator("list_metrics").paginate(Namespace="My/App")
    assert "small" in {metric["MetricName"] for page in everything for metric in page["Metrics"]}
