"""Health checks of real jobs: all pass on healthy hosts, and a sick link ends an attempt before its program."""

import contextlib
import json
import os
import subprocess
import threading
import time

import pytest
from boto3_clients import Clients, job_request, log_of, unique, wait
from running_service import start_service

pytestmark = [
    pytest.mark.clients,
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("health-jobs"),
    pytest.mark.skipif(os.geteuid() != 0, reason="routes inside hosts are changed: needs root"),
]

TWO_HOSTS = {"InstanceCount": 2, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10}
PORT_RULE = ("ipproto", "tcp", "sport", "7777", "blackhole")
NUM_TRIES = 10  # tries to inject a fault before the agents start
LIMIT_S = 90


@pytest.fixture(scope="module")
def own_service(tmp_path_factory):
    """A service that replaces sick hosts."""
    own = start_service(tmp_path_factory.mktemp("health"), CLARY_HEALTH_ACTION="replace")
    yield own
    own.clary("down")


def page_of(service, name):
    done = service.clary("doctor", name, "--json", check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.long
def test_all_checks_of_a_healthy_job_of_two_hosts_pass(own_service):
    aws, name = Clients(own_service), unique("healthy")
    aws.sagemaker.create_training_job(**job_request(name, "echo done", ResourceConfig=TWO_HOSTS))
    facts = wait(aws, name, timeout_s=LIMIT_S)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    code, page = page_of(own_service, name)
    assert code == 0
    assert page["sick"] == []
    links = {
        (item["host"], item["peer"]) for found in page["hosts"].values() for item in found if item["peer"] is not None
    }
    assert links == {("algo-1", "algo-2"), ("algo-2", "algo-1")}
    states = {item["check"]: item["state"] for item in page["hosts"]["algo-2"]}
    assert "bad" not in states.values()
    assert [states[check] for check in ("names", "port", "interface", "collective")] == ["ok"] * 4
    said = own_service.clary("doctor", name).stdout
    assert "FROM/TO" in said
    assert "BAD" not in said
    assert "\033[" not in said
    seconds = json.loads(own_service.clary("describe", name, "--json").stdout)["hosts"][0]["timings_s"]["health"]
    print(f"the checks of a healthy job took {seconds:.2f} s beside its preparation")


@pytest.fixture(scope="module")
def telling_service(tmp_path_factory):
    """A service with the default action: it only reports sick hosts."""
    own = start_service(tmp_path_factory.mktemp("telling"))
    yield own
    own.clary("down")


def states_of(page):
    return {item["state"] for found in page["hosts"].values() for item in found}


def complaints(log):
    """Return the log lines of health checks that report a missing peer."""
    words = ("broke off", "no answer", "nothing came from", "did not start", "not checked")
    return [line for line in log if "health: " in line and any(word in line for word in words)]


@pytest.mark.long(9)
def test_if_sick_hosts_are_only_reported_the_program_runs_during_the_measurement(
    telling_service,
):
    aws, name = Clients(telling_service), unique("beside")
    aws.sagemaker.create_training_job(**job_request(name, "sleep 600", ResourceConfig=TWO_HOSTS))
    try:
        end_s = time.monotonic() + LIMIT_S
        code, page = page_of(telling_service, name)
        while not states_of(page) or "pending" in states_of(page):
            assert time.monotonic() < end_s, page
            time.sleep(0.2)
            code, page = page_of(telling_service, name)
        assert (code, page["status"]) == (0, "InProgress"), page
        for host, peer in (("algo-1", "algo-2"), ("algo-2", "algo-1")):
            found = page["hosts"][host]
            states = {item["check"]: item["state"] for item in found if item["peer"] is None}
            assert [states[check] for check in ("names", "port", "interface")] == ["ok"] * 3, found
            assert states["collective"] in ("ok", "warn"), "no sum within 10 s, on a machine that is very busy"
            assert [item for item in found if item["peer"] == peer]
    finally:
        aws.sagemaker.stop_training_job(TrainingJobName=name)
    assert wait(aws, name, timeout_s=LIMIT_S)["TrainingJobStatus"] == "Stopped"
    assert not complaints(log_of(aws, name))


@pytest.mark.long
def test_a_program_that_ends_at_once_causes_no_report_of_missing_peers(telling_service):
    aws, name = Clients(telling_service), unique("short")
    aws.sagemaker.create_training_job(**job_request(name, "echo done", ResourceConfig=TWO_HOSTS))
    assert wait(aws, name, timeout_s=LIMIT_S)["TrainingJobStatus"] == "Completed"
    code, page = page_of(telling_service, name)
    assert code == 0
    assert "pending" not in states_of(page)
    ports = [item["state"] for found in page["hosts"].values() for item in found if item["check"] == "port"]
    assert ports == ["ok", "ok"], "what a program waits for is always known"
    assert not complaints(log_of(aws, name))


def networks_of(service):
    return set((service.home / "jobs").glob("*/*/network-ready.json"))


@contextlib.contextmanager
def fault_in_next_network(service):
    """Inject a fault into the next network; yield the command's exit codes. After the block no network is changed."""
    codes, ending = [], threading.Event()
    fault = threading.Thread(target=drop_port_in_next_network, args=(service, networks_of(service), codes, ending))
    fault.start()
    try:
        yield codes
    finally:
        ending.set()
        fault.join(LIMIT_S)


def drop_port_in_next_network(service, before, codes, ending):
    """Wait for a new network; drop all packets of its algo-2 from port 7777."""
    end_s = time.monotonic() + LIMIT_S
    while not (found := networks_of(service) - before):
        if time.monotonic() > end_s or ending.wait(0.002):
            return  # the test sees that no command ran
    ready = json.loads(found.pop().read_text())
    command = ["nsenter", f"--net=/proc/{ready['pid']}/fd/{ready['namespaces']['algo-2']}", "ip", "rule", "add"]
    codes.append(subprocess.run([*command, *PORT_RULE], check=False).returncode)


@pytest.mark.long
def test_an_attempt_with_a_sick_link_ends_before_its_program_and_the_next_one_completes(own_service):
    aws = Clients(own_service)
    for _ in range(NUM_TRIES):
        name = unique("sick")
        request = job_request(
            name, "echo ran once", ResourceConfig=TWO_HOSTS, RetryStrategy={"MaximumRetryAttempts": 2}
        )
        with fault_in_next_network(own_service) as codes:
            aws.sagemaker.create_training_job(**request)
            facts = wait(aws, name, timeout_s=LIMIT_S)
        assert codes == [0]
        assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
        code, page = page_of(own_service, name)
        if page["past_attempts"]:
            break
    (past,) = page["past_attempts"]
    assert "the link to algo-2 is sick: algo-1 to algo-2, drop: port 7777 of algo-2 says nothing" in past["reason"]
    assert code == 0, "the second attempt is well"
    assert page["attempt"] == 2
    log = log_of(aws, name)
    assert sum(line == "ran once" for line in log) == 2, "once on each host, of the second attempt"
    assert any("health: drop of algo-1 to algo-2: port 7777" in line for line in log)
