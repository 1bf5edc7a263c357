"""Jobs that survive the loss of hosts: reclaimed spot capacity under SDK v2, and killed hosts."""

import json
import os
import re
import signal
import time

import pytest
from attempts_of_jobs import LIMIT_S, agent_of, statuses_of, wait_for_line
from boto3_clients import Clients, log_of, unique, wait
from program_jobs import model_of, script_request, start
from running_service import CLIENTS, SDK2_PYTHON, start_service

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("attempts")]

COUNTER = (CLIENTS / "source/counter.py").read_text()


@pytest.mark.long
def test_a_reclaimed_spot_job_of_sdk_v2_resumes_and_prints_its_savings(service, client_runs):
    name = unique("spot")
    client_runs.start(SDK2_PYTHON, "v2_spot.py", name, "30")
    wait_for_line(service, name, "step 5 done")
    said = service.clary("spot", "reclaim", name).stdout
    assert f"{name}: The spot capacity of algo-1 was reclaimed; attempt 1 ends" in said
    output, facts = client_runs.result("v2_spot.py", name, "30")
    saved = int(re.search(r"told to stop, saved step (\d+)", output)[1])
    assert f"begins at step {saved}" in output, "the client that followed the first attempt sees the second"
    assert output.count("step 30 done") == 1
    assert "Managed Spot Training savings" in output
    assert facts["statuses"] == [
        *("Starting", "Downloading", "Training", "Interrupted"),
        *("Starting", "Downloading", "Training", "Uploading", "Completed"),
    ]
    described = service.clary("describe", name).stdout
    assert "attempts that ended early" in described
    assert "The spot capacity of algo-1 was reclaimed" in described
    first = service.clary("logs", name, "--attempt", "1").stdout
    second = service.clary("logs", name, "--attempt", "2").stdout
    assert "begins at step 0" in first
    assert "step 30 done" not in first
    assert "begins at step 0" not in second
    assert "step 30 done" in second


@pytest.mark.long
def test_a_job_whose_host_is_killed_resumes_from_its_checkpoint(service, aws):
    name = unique("killed")
    request = script_request(
        aws,
        name,
        {"train.py": COUNTER},
        hyperparameters={"steps": "40", "pause": "0.25"},
        instance_count=2,
        CheckpointConfig={"S3Uri": f"s3://clary/checkpoints/{name}"},
    )
    start(aws, request)
    wait_for_line(service, name, "step 5 done")
    os.kill(agent_of(service, name, "algo-2"), signal.SIGKILL)
    facts = wait(aws, name, timeout_s=LIMIT_S)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    assert statuses_of(aws, name)[:5] == ["Starting", "Downloading", "Training", "Restarting", "Starting"]
    described = json.loads(service.clary("describe", name, "--json").stdout)
    assert described["attempt"] == 2
    assert "algo-2 was lost" in described["past_attempts"][0]["reason"]
    began = json.loads(model_of(aws, facts)["count.json"])["began_at"]
    assert began > 0, log_of(aws, name)


def test_without_checkpoints_a_killed_host_fails_the_job_as_in_sagemaker(service, aws):
    name = unique("not-restarted")
    start(aws, script_request(aws, name, {"train.py": "import time\nprint('up', flush=True)\ntime.sleep(60)\n"}))
    wait_for_line(service, name, "up")
    os.kill(agent_of(service, name, "algo-1"), signal.SIGKILL)
    facts = wait(aws, name, timeout_s=LIMIT_S)
    assert facts["TrainingJobStatus"] == "Failed"
    assert "algo-1 was lost" in facts["FailureReason"]


def test_retry_strategy_limits_the_restarts_after_killed_hosts(service, aws):
    name = unique("retried")
    script = "import time\nprint('up', flush=True)\ntime.sleep(60)\n"
    start(aws, script_request(aws, name, {"train.py": script}, RetryStrategy={"MaximumRetryAttempts": 1}))
    for attempt in (1, 2):
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            lines = service.clary("logs", name, "--attempt", str(attempt), check=False).stdout
            if "| up" in lines:
                break
            time.sleep(0.3)
        os.kill(agent_of(service, name, "algo-1"), signal.SIGKILL)
        time.sleep(1)
    facts = wait(aws, name, timeout_s=LIMIT_S)
    assert facts["TrainingJobStatus"] == "Failed"
    assert statuses_of(aws, name).count("Restarting") == 1


HANGS_ONCE = """
import os, pathlib, time
print('up', flush=True)
marker = pathlib.Path('/opt/ml/checkpoints/has-hung')
if not marker.exists():
    marker.touch()
    time.sleep(5)  # for the mirror
    os.kill(os.getpid(), 19)
print('done', flush=True)
"""


@pytest.mark.long(30)
def test_a_hanging_program_is_reported_and_restarted_if_so_configured(tmp_path_factory):
    variables = {"CLARY_HANG_TIMEOUT_S": "8", "CLARY_RESTART_HUNG": "1", "CLARY_CHECKPOINT_INTERVAL_S": "1"}
    own = start_service(tmp_path_factory.mktemp("hangs"), **variables)
    try:
        own_aws = Clients(own)
        name = unique("hangs")
        config = {"S3Uri": f"s3://clary/checkpoints/{name}"}
        start(own_aws, script_request(own_aws, name, {"train.py": HANGS_ONCE}, CheckpointConfig=config))
        facts = wait(own_aws, name, timeout_s=LIMIT_S)
        assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
        assert statuses_of(own_aws, name).count("Restarting") == 1
        log = "\n".join(log_of(own_aws, name))
        assert "alarm: no progress for " in log
        assert "(T, " in log, "the state of the process that was stopped"
        reason = json.loads(own.clary("describe", name, "--json").stdout)["past_attempts"][0]["reason"]
        assert "the program hangs: no progress for" in reason
        dump = own.clary("dump", name, "--last").stdout
        assert "algo-1: no progress for" in dump
        assert "it is stopped by a signal (state T)" in dump, "taken before the program was ended"
    finally:
        own.clary("down")
