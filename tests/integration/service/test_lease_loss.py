"""Two services that share a PostgreSQL database: one sleeps for longer than its lease, and the other takes over."""

import os
import signal
import time

import pytest
from boto3_clients import Clients, job_request, unique, wait
from postgres_server import PostgresServer
from running_service import SETTINGS, start_service
from service_processes import service_pid

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture
def postgres():
    server = PostgresServer()
    try:
        yield server
    finally:
        server.remove()


@pytest.mark.long(120)
def test_a_service_that_wakes_after_its_lease_has_ended_leaves_its_successor_s_jobs_alone(tmp_path, postgres):
    variables = {"CLARY_DATABASE_URL": postgres.url(postgres.create_database())}
    services = [start_service(tmp_path / "sleeper", SETTINGS, **variables)]
    try:
        sleeper = service_pid(services[0])
        name = unique("kept")
        request = job_request(name, "sleep 600")
        aws = Clients(services[0])
        aws.sagemaker.create_training_job(**request, RetryStrategy={"MaximumRetryAttempts": 5})
        wait(aws, name, until=("Training",))
        os.kill(sleeper, signal.SIGSTOP)
        try:
            services.append(start_service(tmp_path / "successor", SETTINGS, **variables))
            aws = Clients(services[1])
            # The agents report to the sleeper only, so that the successor starts the job again.
            _wait_for_second_attempt(aws, name)
        finally:
            os.kill(sleeper, signal.SIGCONT)
        deadline = time.monotonic() + 60
        while _is_alive(sleeper):
            assert time.monotonic() < deadline, "the sleeper has not left"
            time.sleep(0.2)
        said = (services[0].home / "service.log").read_text()
        assert "the service leaves and touches no job any more: lease 'service' of " in said
        assert "attempt 1: its hosts were ended, for a service elsewhere" in said
        time.sleep(2)
        facts = aws.sagemaker.describe_training_job(TrainingJobName=name)
        assert (facts["TrainingJobStatus"], facts["SecondaryStatus"]) == ("InProgress", "Training")
        aws.sagemaker.stop_training_job(TrainingJobName=name)
        assert wait(aws, name)["TrainingJobStatus"] == "Stopped"
    finally:
        for service in services:
            service.clary("down", check=False)


def _wait_for_second_attempt(aws, name):
    deadline = time.monotonic() + 60
    while True:
        facts = aws.sagemaker.describe_training_job(TrainingJobName=name)
        statuses = [row["Status"] for row in facts["SecondaryStatusTransitions"]]
        if statuses.count("Training") == 2 and facts["SecondaryStatus"] == "Training":
            return
        assert time.monotonic() < deadline, statuses
        time.sleep(0.2)


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
