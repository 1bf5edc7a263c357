"""Hyperband continues trials from their checkpoints: no epoch is trained twice, and no checkpoint is copied."""

import pytest
from boto3_clients import Clients, log_of
from running_service import start_service
from tuning_jobs import completed, tuning_request

pytestmark = [pytest.mark.timeout(280), pytest.mark.xdist_group("tuning-promotion")]

EPOCHS, NUM_TRIALS = 9, 24
PROGRAM = """
import json, os, signal, time
place = "/opt/ml/checkpoints/state"
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # between two epochs or in one: the last whole one is stored
# Each configuration is worse than those before it, so that Hyperband has ended good ones by the time others come.
state = {"epoch": 0, "loss": int(os.environ["TRAINING_JOB_NAME"].split("-")[1])}
if os.path.exists(place):
    state = json.load(open(place))
print(f"begins with epoch {state['epoch']}", flush=True)
for epoch in range(state["epoch"], 9):
    time.sleep(0.4)
    state["epoch"] = epoch + 1
    with open(place + ".new", "w") as file:
        json.dump(state, file)
    os.replace(place + ".new", place)
    print(f"epoch {epoch} loss={state['loss']}", flush=True)
"""


@pytest.fixture
def service(tmp_path):
    made = start_service(tmp_path / "home")
    yield made
    made.clary("down")


@pytest.mark.long
def test_a_promoted_trial_begins_at_the_epoch_where_its_predecessor_stopped(service):
    aws = Clients(service)
    request = tuning_request(
        *(aws, "promotes", PROGRAM),
        strategy="Hyperband",
        config={"StrategyConfig": {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": EPOCHS}}},
        ranges={"ContinuousParameterRanges": [{"Name": "point", "MinValue": "0", "MaxValue": "1"}]},
        most=NUM_TRIALS,
        parallel=2,
        CheckpointConfig={"S3Uri": "s3://clary/promotes"},
    )
    aws.sagemaker.create_hyper_parameter_tuning_job(**request)
    _, rows = completed(aws, "promotes", timeout_s=240)
    assert len(rows) == NUM_TRIALS
    names = [row["TrainingJobName"] for row in rows]
    jobs = {name: aws.sagemaker.describe_training_job(TrainingJobName=name) for name in names}
    prefixes = {name: job["CheckpointConfig"]["S3Uri"].rpartition("/")[2] for name, job in jobs.items()}
    going_on = {name: first for name, first in prefixes.items() if first != name}
    assert going_on, "Hyperband goes on with some"
    for name, first in going_on.items():
        (begun,) = [int(line.split()[-1]) for line in log_of(aws, name) if line.startswith("begins with epoch")]
        told = [line for line in log_of(aws, first) if line.startswith("epoch ")]
        assert begun >= 1, "not from the beginning"
        assert begun >= len(told), "no epoch that the first trial has told is trained again"
        assert jobs[name]["HyperParameters"]["point"] == jobs[first]["HyperParameters"]["point"]
    page = service.clary("tuning", "promotes").stdout
    assert "goes on from trial" in page
