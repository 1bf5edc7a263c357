"""SIGTERM to a host's agent, alone or with every process of the host, while the service runs and while it is down."""

import contextlib
import json
import os
import re
import signal
import time

import pytest
from attempts_of_jobs import LIMIT_S, agent_of, statuses_of
from boto3_clients import Clients, job_request, log_of, unique, wait
from program_jobs import model_of, put, script_request, start
from running_service import CLIENTS, ROOT, SETTINGS, start_service
from service_processes import service_pid

from clary.agent.supervisor.notice_period import GANG_ECHO_S
from clary.base.processes import live_descendants

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("notices")]

PROGRAM = (CLIENTS / "source/noticed.py").read_text()
COUNTER = (CLIENTS / "source/stopped.py").read_text()
PLANS_OF_ENGINES = ROOT / "tests/integration/plans_of_engines"
HOSTS = ["algo-1", "algo-2"]
MAX_SPREAD_S = 1.0
_LINE = re.compile(r"(BEGIN|HEARD|READY|DONE) (\{.*\})")


@pytest.fixture(scope="module")
def notices(tmp_path_factory):
    """A service of this module, because a test kills it, with a generous time to stop."""
    yield from serve(tmp_path_factory.mktemp("notices"))


@pytest.fixture(scope="module")
def signalling(tmp_path_factory):
    """A service in whose plans the engine signals every process of a host."""
    yield from serve(tmp_path_factory.mktemp("signalling"), PYTHONPATH=str(PLANS_OF_ENGINES))


def serve(home, **variables):
    settings = SETTINGS.replace("stop_grace_s = 10.0", "stop_grace_s = 30.0\ncheckpoint_interval_s = 1.0")
    own = start_service(home, settings, **variables)
    yield own
    own.clary("down")
    assert "left behind" not in own.clary("doctor", check=False).stdout


@pytest.fixture(scope="module")
def own_aws(notices):
    return Clients(notices)


@pytest.fixture(scope="module")
def signalling_aws(signalling):
    return Clients(signalling)


def said(aws, name, word):
    return [json.loads(facts) for line in log_of(aws, name) for found, facts in _LINE.findall(line) if found == word]


def running(aws, label, **members):
    """Start a job whose programs run on both hosts, and return its name."""
    name = unique(label)
    config = {"S3Uri": f"s3://clary/checkpoints/{name}"}
    files = {"train.py": PROGRAM}
    start(aws, script_request(aws, name, files, instance_count=len(HOSTS), CheckpointConfig=config, **members))
    wait_for(aws, name, "BEGIN", len(HOSTS))
    time.sleep(1.0)  # time for some steps
    return name


def wait_for(aws, name, word, number):
    """Wait until programs have printed a word this many times."""
    deadline_s = time.monotonic() + LIMIT_S
    while len(said(aws, name, word)) < number:
        assert time.monotonic() < deadline_s, log_of(aws, name)[-40:]
        time.sleep(0.1)


def check(service, aws, name, *, max_spread_s=MAX_SPREAD_S, why="SIGTERM"):
    """Assert that programs of both hosts got SIGTERM once, that no step was lost, and that no restart was counted."""
    facts = wait(aws, name, timeout_s=LIMIT_S)
    log = "\n".join(log_of(aws, name)[-80:])
    assert facts["TrainingJobStatus"] == "Completed", (facts.get("FailureReason"), log)
    heard = said(aws, name, "HEARD")
    assert sorted((item["host"], item["count"]) for item in heard) == [(host, 1) for host in HOSTS], log
    assert {item["reason"] for item in heard} == {"reclaimed"}
    times = [item["at"] for item in heard]
    print(f"{name}: both hosts heard SIGTERM within {max(times) - min(times):.3f} s")
    assert max(times) - min(times) < max_spread_s
    saved = {item["host"]: item["step"] for item in heard}
    resumed = {item["host"]: item["last"] for item in said(aws, name, "BEGIN") if item["last"]["step"]}
    assert resumed == {host: {"step": step, "heard": 1} for host, step in saved.items()}, "what was saved last"
    assert {json.loads(text)["last"]["step"] for text in model_of(aws, facts).values()} == set(saved.values())
    assert statuses_of(aws, name) == [
        *("Starting", "Downloading", "Training", "Interrupted"),
        *("Starting", "Downloading", "Training", "Uploading", "Completed"),
    ]
    described = json.loads(service.clary("describe", name, "--json").stdout)
    assert [attempt["kind"] for attempt in described["past_attempts"]] == ["reclaimed"]
    assert f"its capacity is taken back ({why})" in described["past_attempts"][0]["reason"]
    assert facts["BillableTimeInSeconds"] == facts["TrainingTimeInSeconds"], "no job of spot capacity"
    return facts


def signal_everybody(*agents, agent_first=True):
    """Signal agents and all their descendants one after the other, as Slurm and systemd do."""
    pids = [pid for agent in agents for pid in [agent, *sorted(live_descendants(agent))]]
    for pid in pids if agent_first else reversed(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


@pytest.mark.long(15)
def test_sigterm_to_one_agent_stops_all_hosts_and_the_job_resumes(notices, own_aws):
    name = running(own_aws, "noticed", RetryStrategy={"MaximumRetryAttempts": 1})
    os.kill(agent_of(notices, name, "algo-2"), signal.SIGTERM)
    check(notices, own_aws, name)


@pytest.mark.long(10)
@pytest.mark.parametrize("agent_first", [True, False])
def test_programs_get_one_sigterm_if_every_process_of_a_host_is_signalled(notices, own_aws, agent_first):
    name = running(own_aws, "step-signalled")
    agent = agent_of(notices, name, "algo-2")
    signal_everybody(agent, agent_first=agent_first)
    check(notices, own_aws, name)


@pytest.mark.long(10)
@pytest.mark.parametrize("pause_s", [0.0, 0.3])
def test_programs_get_one_sigterm_if_all_hosts_are_signalled_in_turn(signalling, signalling_aws, pause_s):
    name = running(signalling_aws, "all-signalled")
    first, second = [agent_of(signalling, name, host) for host in HOSTS]
    signal_everybody(first)
    time.sleep(pause_s)  # the service's order arrives before the signal
    signal_everybody(second)
    check(signalling, signalling_aws, name, why="SIGTERM from the engine")


@pytest.mark.long(15)
def test_a_host_that_the_engine_does_not_signal_is_stopped_too(signalling, signalling_aws):
    name = running(signalling_aws, "one-signalled")
    signal_everybody(agent_of(signalling, name, "algo-2"))
    check(signalling, signalling_aws, name, why="SIGTERM from the engine", max_spread_s=GANG_ECHO_S + MAX_SPREAD_S)


@pytest.mark.parametrize("launcher", ["bash", "torchrun", "mpi"])
@pytest.mark.long(10)
def test_ranks_under_launchers_get_one_sigterm_if_every_process_is_signalled(signalling, signalling_aws, launcher):
    aws = signalling_aws
    request = launched(aws, launcher)
    num_ranks = len(HOSTS) * (1 if launcher == "bash" else 2)
    name = start(aws, request)
    wait_for(aws, name, "READY", num_ranks)
    signal_everybody(*[agent_of(signalling, name, host) for host in HOSTS])
    wait_for(aws, name, "DONE", num_ranks)
    wait(aws, name, until=("Interrupted", "Starting", "Downloading", "Training"))
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    done = [(item["host"], item["rank"], item["count"]) for item in said(aws, name, "DONE")]
    assert len({(host, rank) for host, rank, _ in done[:num_ranks]}) == num_ranks
    assert {count for _, _, count in done} == {1}, log_of(aws, name)
    wait(aws, name, until=("Stopped",))


def launched(aws, launcher):
    """Return a request whose ranks count their signals under a launcher."""
    name, two = unique(launcher), {"InstanceCount": 2, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 10}
    if launcher == "mpi":
        mpi = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
        options = {"program": "stopped.py", "hyperparameters": {**mpi, "sagemaker_mpi_custom_mpi_options": '""'}}
        return script_request(aws, name, {"stopped.py": COUNTER}, instance_count=2, **options)
    start_it = {"bash": "python3", "torchrun": "exec torchrun --nproc-per-node 2"}[launcher]
    command = f"{start_it} /opt/ml/input/data/program/stopped.py; echo after"
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": put(aws, f"code/{name}/stopped.py", COUNTER)}}
    channels = [{"ChannelName": "program", "DataSource": source}]
    return job_request(name, command, ResourceConfig=two, InputDataConfig=channels)


@pytest.mark.long(70)
@pytest.mark.parametrize("service_first", [False, True])
def test_no_step_is_lost_if_the_service_is_killed_at_the_notice(notices, own_aws, service_first):
    name = running(own_aws, "unheard")
    agent, service = agent_of(notices, name, "algo-2"), service_pid(notices)
    kills = [(agent, signal.SIGTERM), (service, signal.SIGKILL)]
    for pid, number in reversed(kills) if service_first else kills:
        os.kill(pid, number)
    began_s = time.monotonic()
    time.sleep(6.0)  # without the service, the agent stops after two heartbeats
    notices.clary("up")
    print(f"the service was away for {time.monotonic() - began_s:.1f} s")
    check(notices, own_aws, name, max_spread_s=20.0)
