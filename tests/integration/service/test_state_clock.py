"""A real service and its agents whose wall clock is set while jobs run: jobs are billed correctly and end when due."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from boto3_clients import Clients, job_request, log_of, unique, wait
from running_service import start_service

from clary.testing.faults.fault_clock import FaultClock, find_compiler

pytestmark = [pytest.mark.timeout(240)]

DAY_S = 86_400
STEPS = [60, -60, 3600, -3600, DAY_S, -DAY_S]
COMPILER = find_compiler()


def end_fork_server(home):
    """Kill the process from which the service of a state folder forks agents; the next launch starts another."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"clary.agent.fork_server" not in (place / "cmdline").read_bytes().split(b"\0"):
                continue
            parent = (place / "stat").read_bytes().rpartition(b")")[2].split()[1].decode()
            if f"CLARY_HOME={home}".encode() in Path(f"/proc/{parent}/environ").read_bytes().split(b"\0"):
                os.kill(int(place.name), signal.SIGKILL)


@pytest.mark.needs("compiler")
@pytest.mark.long
def test_setting_the_wall_clock_changes_neither_the_end_nor_the_bill_of_a_job(tmp_path):
    clock = FaultClock(tmp_path, COMPILER)
    # This process and the object store use the machine's clock, which does not jump with the service's clock.
    service = start_service(tmp_path / "home", CLARY_CLOCK_SKEW_S=str(2 * DAY_S), **clock.environment())
    aws = Clients(service)
    try:
        stepped, limited = unique("stepped"), unique("limited")
        runs_out = {"MaxRuntimeInSeconds": 4}
        began_s = time.monotonic()
        aws.sagemaker.create_training_job(**job_request(limited, "sleep 300", StoppingCondition=runs_out))
        wait(aws, limited, until=("Training",))
        clock.set_offset(-600)  # the largest offset that the store accepts in signatures of agents
        facts = wait(aws, limited)
        assert (facts["TrainingJobStatus"], facts["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
        assert 4 <= facts["BillableTimeInSeconds"] <= time.monotonic() - began_s + 1
        clock.set_offset(0)

        created_s = time.monotonic()
        aws.sagemaker.create_training_job(**job_request(stepped, "trap 'exit 0' TERM; while :; do sleep 0.1; done"))
        wait(aws, stepped, until=("Training",))
        training_s = time.monotonic()
        for step_s in STEPS:
            clock.set_offset(step_s)
            time.sleep(1.2)  # longer than a heartbeat and two passes of the service
            facts = aws.sagemaker.describe_training_job(TrainingJobName=stepped)
            assert facts["SecondaryStatus"] == "Training", (step_s, facts.get("FailureReason"))
        clock.set_offset(0)
        least_s = time.monotonic() - training_s
        aws.sagemaker.stop_training_job(TrainingJobName=stepped)
        facts = wait(aws, stepped)
        assert facts["TrainingJobStatus"] == "Stopped", facts.get("FailureReason")
        assert int(least_s) <= facts["BillableTimeInSeconds"] <= time.monotonic() - created_s + 1
        times = [row["StartTime"] for row in facts["SecondaryStatusTransitions"]]
        assert times == sorted(times)

        clock.set_offset_of_new(DAY_S)  # for new processes; the service's clock is unchanged
        end_fork_server(tmp_path / "home")  # agents are forked from it, and would have its clock
        skewed = unique("skewed")
        aws.sagemaker.create_training_job(**job_request(skewed, "sleep 1; echo kept > /opt/ml/model/kept"))
        facts = wait(aws, skewed)
        assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
        assert facts["BillableTimeInSeconds"] < 100
        told = "86400 s ahead of the service's, expected less than 2 s"
        assert any(f"clock of algo-1: {told}" in line for line in log_of(aws, skewed))
        assert f"  algo-1: {told}" in service.clary("describe", skewed).stdout
    finally:
        clock.set_offset(0)
        service.clary("down", check=False)
