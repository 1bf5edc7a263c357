"""Jobs with CheckpointConfig in a real service: each finds the checkpoints of the previous job."""

from __future__ import annotations

import json
import time

import pytest
from boto3_clients import job_request, log_of, unique, wait
from program_jobs import BUCKET, put, run_command, start

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180), pytest.mark.xdist_group("checkpoint-jobs")]

# Prints the checkpoint files that it finds, and adds a step.
TRAIN = """
import json, os, pathlib, sys, time

CONFIG = "/opt/ml/input/config/resourceconfig.json"
folder = pathlib.Path(os.environ["CHECKPOINTS"])
found = {p.relative_to(folder).as_posix(): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}
host = json.load(open(CONFIG))["current_host"]
print("FOUND", json.dumps({"host": host, "files": found}), flush=True)
step = folder / f"step-{len(found)}-of-{host}"
step.mkdir()
(step / "model.pt").write_text("weights of " + host)
(folder / "latest").write_text(step.name)
print("WRITTEN", flush=True)
if sys.argv[1:] == ["wait"]:
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def script(aws):
    return put(aws, f"code/{unique('checkpoints')}/train.py", TRAIN)


def code_channel(script):
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": script}}
    return [{"ChannelName": "code", "DataSource": source}]


def run(aws, script, label, prefix, *, local_path="/opt/ml/checkpoints", num_hosts=1):
    config = {"S3Uri": prefix}
    if local_path != "/opt/ml/checkpoints":
        config["LocalPath"] = local_path
    return run_command(
        aws,
        label,
        f"CHECKPOINTS={local_path} python /opt/ml/input/data/code/train.py",
        InputDataConfig=code_channel(script),
        CheckpointConfig=config,
        ResourceConfig={"InstanceCount": num_hosts, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1},
    )


def found(aws, facts):
    """Return host -> files that its program found at its start."""
    lines = [line.partition("FOUND ")[2] for line in log_of(aws, facts["TrainingJobName"]) if "FOUND " in line]
    return {item["host"]: item["files"] for item in map(json.loads, lines)}


def keys_below(aws, prefix):
    listed = aws.s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return [item["Key"].removeprefix(prefix) for item in listed]


@pytest.mark.parametrize("local_path", ["/opt/ml/checkpoints", "/opt/ml/model/state", "/data/of/mine"])
@pytest.mark.long
def test_the_next_job_with_the_same_prefix_finds_the_last_jobs_checkpoints(aws, script, local_path) -> None:
    name = unique("ckpt")
    prefix = f"s3://{BUCKET}/{name}"
    first = run(aws, script, "ckpt-1", prefix, local_path=local_path)
    assert first["TrainingJobStatus"] == "Completed", (
        first.get("FailureReason"),
        log_of(aws, first["TrainingJobName"]),
    )
    assert found(aws, first) == {"algo-1": {}}
    keys = keys_below(aws, f"{name}/")
    assert {"step-0-of-algo-1/model.pt", "latest"} <= set(keys)
    second = run(aws, script, "ckpt-2", prefix, local_path=local_path)
    assert second["TrainingJobStatus"] == "Completed", second.get("FailureReason")
    expected = {"step-0-of-algo-1/model.pt": "weights of algo-1", "latest": "step-0-of-algo-1"}
    assert found(aws, second) == {"algo-1": expected}
    log = log_of(aws, second["TrainingJobName"])
    assert any("restored 2 files, 33 bytes" in line and f"from {prefix}: set 1 of algo-1" in line for line in log), log
    third = run(aws, script, "ckpt-3", prefix, local_path=local_path)
    files = found(aws, third)["algo-1"]
    assert files["latest"] == "step-2-of-algo-1"
    assert "step-2-of-algo-1/model.pt" in files
    assert aws.s3.get_object(Bucket=BUCKET, Key=f"{name}/latest")["Body"].read() == b"step-3-of-algo-1"


def test_two_hosts_mirror_to_one_prefix(aws, script) -> None:
    name = unique("ckpt-two")
    prefix = f"s3://{BUCKET}/{name}/"
    first = run(aws, script, "ckpt-two-1", prefix, num_hosts=2)
    assert first["TrainingJobStatus"] == "Completed", (
        first.get("FailureReason"),
        log_of(aws, first["TrainingJobName"]),
    )
    second = run(aws, script, "ckpt-two-2", prefix, num_hosts=2)
    models = {f"step-0-of-algo-{n}/model.pt": f"weights of algo-{n}" for n in (1, 2)}
    assert found(aws, second) == {f"algo-{n}": {**models, "latest": f"step-0-of-algo-{n}"} for n in (1, 2)}


def test_files_written_before_a_stop_are_kept(aws, script) -> None:
    name = unique("ckpt-stop")
    request = job_request(
        name,
        "CHECKPOINTS=/opt/ml/checkpoints exec python /opt/ml/input/data/code/train.py wait",
        InputDataConfig=code_channel(script),
        CheckpointConfig={"S3Uri": f"s3://{BUCKET}/{name}"},
    )
    start(aws, request)
    deadline_s = time.monotonic() + 60
    while not any("WRITTEN" in line for line in log_of(aws, name)):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Stopped"
    kept = set(keys_below(aws, f"{name}/"))
    assert {"latest", "step-0-of-algo-1/model.pt"} <= kept, (kept, facts, log_of(aws, name))


def test_damaged_checkpoint_sets_fail_the_job_with_that_reason(aws, script) -> None:
    name = unique("ckpt-torn")
    key = f"{name}/.clary-checkpoints/algo-1/set-00000001.json"
    put(aws, key, '{"set": {}, "sha256": "0"}')
    facts = run(aws, script, "ckpt-torn", f"s3://{BUCKET}/{name}")
    assert facts["TrainingJobStatus"] == "Failed"
    assert "No set of checkpoints of algo-1 below" in facts["FailureReason"]
    assert "set 1: the manifest of checkpoints does not match its own SHA-256" in facts["FailureReason"]


@pytest.mark.long
def test_a_job_whose_last_checkpoints_cannot_be_stored_does_not_complete(aws) -> None:
    bucket = unique("gone")
    aws.s3.create_bucket(Bucket=bucket)
    request = job_request(
        unique("ckpt-lost"),
        "echo READY; sleep 8; echo weights > /opt/ml/checkpoints/model.pt",
        CheckpointConfig={"S3Uri": f"s3://{bucket}/ckpt"},
    )
    name = start(aws, request)
    deadline_s = time.monotonic() + 60
    while not any("READY" in line for line in log_of(aws, name)):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    aws.s3.delete_bucket(Bucket=bucket)
    facts = wait(aws, name)
    log = log_of(aws, name)
    assert facts["TrainingJobStatus"] == "Failed", log
    assert (
        f"checkpoints did not reach s3://{bucket}/ckpt in full: 1 file is in no set (model.pt)"
        in (facts["FailureReason"])
    )
    assert "NoSuchBucket" in facts["FailureReason"]
