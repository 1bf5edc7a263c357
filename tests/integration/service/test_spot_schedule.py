"""A trace of spot capacity and a price file in a running service: interruptions and costs of its jobs."""

import json
import shutil

import pytest
from boto3_clients import Clients, job_request, unique, wait
from running_service import start_service

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("spot-schedule")]

# Repeatedly twenty seconds with one host and ten without.
TRACE = {"metadata": {"gap_seconds": 600}, "data": [1, 1, 0] * 20}
PRICES = {"region": "a cellar", "types": {"ml.m5.large": {"usd_per_hour": 3600.0, "spot_fraction": 0.25}}}
# Runs until it is interrupted; after the resume it has three seconds of work left.
PROGRAM = (
    "if test -e /opt/ml/checkpoints/begun; then sleep 3; exit 0; fi; touch /opt/ml/checkpoints/begun; "
    "trap 'exit 1' TERM; for i in $(seq 600); do sleep 0.2; done"
)


@pytest.fixture(scope="module")
def spot_service(tmp_path_factory):
    home = tmp_path_factory.mktemp("clary-spot")
    trace, prices = home / "trace.json", home / "prices.json"
    trace.write_text(json.dumps(TRACE))
    prices.write_text(json.dumps(PRICES))
    running = start_service(
        home,
        CLARY_SPOT_SCHEDULE_FILE=str(trace),
        CLARY_SPOT_TIME_SCALE="60",
        CLARY_PRICES_FILE=str(prices),
        CLARY_STOP_GRACE_S="5",
    )
    yield running
    running.clary("down")
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.long
def test_a_job_under_a_trace_waits_for_capacity_resumes_and_its_ledger_adds_up(spot_service):
    aws = Clients(spot_service)
    name = unique("traced")
    aws.sagemaker.create_training_job(
        **job_request(
            name,
            PROGRAM,
            EnableManagedSpotTraining=True,
            CheckpointConfig={"S3Uri": f"s3://clary/checkpoints/{name}"},
            StoppingCondition={"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 600},
        )
    )
    facts = wait(aws, name, timeout_s=180)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    training_s, billable_s = facts["TrainingTimeInSeconds"], facts["BillableTimeInSeconds"]
    assert billable_s == max(1, round(training_s * 0.25))

    page = json.loads(spot_service.clary("describe", name, "--json").stdout)
    assert "spot capacity went down to 0 hosts and jobs hold 1" in page["past_attempts"][0]["reason"]
    messages = [row["message"] for row in page["transitions"] if row["status"] == "Interrupted"]
    assert any("Needs 1 host of spot capacity; 0 of 0 are free" in message for message in messages), messages
    book = page["ledger"]
    wall_s = (facts["SecondaryStatusTransitions"][-1]["EndTime"] - facts["CreationTime"]).total_seconds()
    assert book["wall_s"] == pytest.approx(wall_s, abs=0.01)
    (host,) = book["hosts"]
    assert sum(host["seconds"].values()) == pytest.approx(wall_s, rel=0.01)
    assert host["seconds"]["queued"] > 2, "ten seconds without capacity, less what the stop took"
    assert host["seconds"]["productive"] > 2.5, "the three seconds of the last attempt"
    assert (book["num_attempts"] - 1, book["num_restarted"]) == (book["num_reclaimed"], 0)
    assert book["bill"]["on_demand_usd"] == pytest.approx(training_s)
    assert book["bill"]["spot_usd"] == pytest.approx(training_s / 4)

    text = spot_service.clary("describe", name).stdout.split("time and money\n")[1]
    assert f"  training {training_s} s a host, billable {billable_s} s: " in text
    assert "(approximate: prices.json, a cellar)" in text
