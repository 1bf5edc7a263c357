"""Trials that run one after the other in one host, forked from one interpreter, without the previous trial's files."""

import pytest
from boto3_clients import Clients, log_of
from running_service import start_service
from tuning_jobs import categories, completed, tuning_request

pytestmark = [pytest.mark.root, pytest.mark.timeout(200), pytest.mark.xdist_group("tuning-one-host")]

NUM_TRIALS = 6
PROGRAM = """
import os, time
places = ("/opt/ml/model", "/opt/ml/checkpoints", "/tmp", "/root", "/dev/shm")
print("found", sum(os.path.exists(f"{place}/left") for place in places), flush=True)
print("pid", os.getpid(), flush=True)
for place in places:
    os.makedirs(place, exist_ok=True)
    open(f"{place}/left", "w").close()
if int(os.environ["SM_HP_ROW"]) == 4:
    open("/etc/left", "w").close()
time.sleep(1.5)  # in which the first trial's successor gets ready
print("loss=1", flush=True)
"""


@pytest.fixture
def service(tmp_path):
    made = start_service(tmp_path / "home", CLARY_MAX_HOSTS="1")
    yield made
    made.clary("down")


@pytest.mark.long(27)
def test_trials_share_one_host_until_one_leaves_a_trace(service):
    aws = Clients(service)
    request = tuning_request(
        *(aws, "follow", PROGRAM), strategy="Grid", ranges=categories(row=NUM_TRIALS), most=NUM_TRIALS, parallel=1
    )
    aws.sagemaker.create_hyper_parameter_tuning_job(**request)
    _, rows = completed(aws, "follow", timeout_s=120)
    jobs = sorted(
        (aws.sagemaker.describe_training_job(TrainingJobName=row["TrainingJobName"]) for row in rows),
        key=lambda job: job["TrainingStartTime"],
    )
    logs = [log_of(aws, job["TrainingJobName"]) for job in jobs]
    assert [line for log in logs for line in log if line.startswith("found ")] == ["found 0"] * NUM_TRIALS
    pids = [int(line.split()[1]) for log in logs for line in log if line.startswith("pid ")]
    places = [int(job["HyperParameters"]["row"].strip('"')) for job in jobs]
    of_trace = places.index(4)
    assert pids[2] > pids[1], f"the third trial ran in the host of the second: {pids}"
    in_one_host = pids[1 : of_trace + 1] if of_trace > 0 else []
    assert in_one_host == sorted(in_one_host), f"{pids}, and trial {of_trace + 1} left a trace"
    after = pids[of_trace + 1 :]
    assert all(pid < max(pids) for pid in after), f"trials after the trace have hosts of their own: {pids}"
