"""Checkpoints whose writers are stopped or killed in the middle of a file: no half file is restored, for every end."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from attempts_of_jobs import agent_of, wait_for_line
from boto3_clients import job_request, log_of, unique, wait
from program_jobs import BUCKET, put, start

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180), pytest.mark.xdist_group("checkpoint-torn")]

# Prints the checkpoints that it finds and ends if there are any; otherwise writes one checkpoint and half of another.
TRAIN = """
import json, os, pathlib, subprocess, sys, time

folder = pathlib.Path("/opt/ml/checkpoints")
found = {p.relative_to(folder).as_posix(): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
print("FOUND", json.dumps(found), flush=True)
if found:
    raise SystemExit
(folder / "ck-0").mkdir()
(folder / "ck-0/shard0").write_bytes(b"0" * 1000)
WRITE_HALF = '''
import time
file = open("/opt/ml/checkpoints/ck-1/shard1", MODE, buffering=0)
file.write(b"b" * 2_000_000)
print("HALF", flush=True)
time.sleep(600)
'''.replace("MODE", repr("ab" if "appends" in sys.argv[1] else "wb"))
(folder / "ck-1").mkdir()
(folder / "ck-1/shard0").write_bytes(b"a" * 4_000_000)
log = open(folder / "train.log", "w")
log.write("begun"); log.flush()
if sys.argv[1] == "in a child that is killed":
    child = subprocess.Popen([sys.executable, "-c", WRITE_HALF], stdout=subprocess.PIPE)
    child.stdout.readline()
    time.sleep(4)
    child.kill(); child.wait()
    print("HALF", flush=True)
    time.sleep(600)
exec(WRITE_HALF)
"""


@pytest.fixture(scope="module")
def script(aws):
    return put(aws, f"code/{unique('torn')}/train.py", TRAIN)


def request_of(script, prefix, how="itself"):
    return job_request(
        unique("torn"),
        f"exec python /opt/ml/input/data/code/train.py {how!r}",
        InputDataConfig=[
            {"ChannelName": "code", "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": script}}}
        ],
        CheckpointConfig={"S3Uri": f"s3://{BUCKET}/{prefix}"},
        RetryStrategy={"MaximumRetryAttempts": 2},
    )


def found(aws, name):
    """Return the lists of checkpoints that each run of the program printed at its start."""
    return [json.loads(line.partition("FOUND ")[2]) for line in log_of(aws, name) if "FOUND " in line]


def wait_for_set(service, name, *, rest_s=6.0):
    """Wait until a set with the whole checkpoint is listed, and for at least one more round of the mirror."""
    deadline_s = time.monotonic() + 60
    while " 1 " not in service.clary("checkpoints", name).stdout.partition("STATE")[2]:
        assert time.monotonic() < deadline_s
        time.sleep(0.3)
    time.sleep(rest_s)


@pytest.mark.parametrize("how", ["itself", "itself, and appends", "in a child that is killed"])
@pytest.mark.long(65)
def test_half_a_file_of_a_stopped_or_killed_writer_is_in_no_set(service, aws, script, how) -> None:
    prefix = unique("torn")
    name = start(aws, request_of(script, prefix, how))
    wait_for_line(service, name, "HALF")
    # A file that no process has open counts as settled after half a minute without a change.
    wait_for_set(service, name, rest_s=36.0 if "appends" in how else 6.0)
    os.kill(agent_of(service, name, "algo-1"), signal.SIGKILL)
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", (facts.get("FailureReason"), log_of(aws, name))
    first, second = found(aws, name)
    assert (first, second) == ({}, {"ck-0/shard0": 1000, "train.log": 5})
    said = service.clary("checkpoints", "verify", name)
    assert said.stdout.splitlines()[-1].startswith("whole: 1 set, 2 files, ")
    assert "1 file closed by the writer, 1 file kept as far as a log had got" in said.stdout


def test_a_stop_in_mid_file_keeps_the_last_whole_set_and_names_the_cut_file(service, aws, script) -> None:
    prefix = unique("torn-stop")
    name = start(aws, request_of(script, prefix))
    wait_for_line(service, name, "HALF")
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    assert wait(aws, name)["TrainingJobStatus"] == "Stopped"
    described = service.clary("describe", name).stdout
    assert "ck-1/ is left as it was in" in described
    assert "'ck-1/shard1' is not whole" in described
    assert "LEFT OUT at the end, cut short by it: ck-1/shard0, ck-1/shard1" in service.clary("checkpoints", name).stdout
    again = start(aws, request_of(script, prefix))
    assert wait(aws, again)["TrainingJobStatus"] == "Completed"
    assert found(aws, again) == [{"ck-0/shard0": 1000, "train.log": 5}]
