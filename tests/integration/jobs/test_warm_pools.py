"""Warm pools of real hosts as clients see them: kept, reused, refused, expired, killed."""

import json
import os
import signal
import time

import pytest
from attempts_of_jobs import agent_of, wait_for_line
from boto3_clients import Clients, job_request, log_of, unique, wait
from program_jobs import model_of, script_request
from running_service import SETTINGS, start_service
from warm_pools import LIMIT_S, end_pool, pool_of, wait_for_pool

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("warm-pools")]


def keeping(name, command, *, seconds=600, **resources):
    """Return a request with a keep-alive period."""
    request = job_request(name, command)
    request["ResourceConfig"] |= {"KeepAlivePeriodInSeconds": seconds, **resources}
    return request


def ends(aws, name, status="Completed"):
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == status, (facts.get("FailureReason"), log_of(aws, name))


def only_pool(service):
    """Return the folder of the only pool, once pools of earlier tests are gone."""
    deadline_s = time.monotonic() + LIMIT_S
    while len(found := list((service.home / "jobs").glob("pool_*"))) != 1:
        assert time.monotonic() < deadline_s, f"expected one pool, got {found}"
        time.sleep(0.1)
    return found[0]


@pytest.mark.long
def test_a_second_job_gets_the_first_jobs_hosts_and_cache_but_no_other_files(service, aws):
    first, second = unique("warm"), unique("warm")
    leave = (
        "echo kept > $SAGEMAKER_MANAGED_WARMPOOL_CACHE_DIRECTORY/word; echo gone > /tmp/left; echo gone > /opt/ml/left"
    )
    aws.sagemaker.create_training_job(**keeping(first, leave))
    ends(aws, first, "Completed")
    available = wait_for_pool(aws, first, "Available")
    assert available["ResourceRetainedBillableTimeInSeconds"] >= 0
    listed = aws.sagemaker.list_training_jobs(WarmPoolStatusEquals="Available", NameContains=first)
    assert [item["TrainingJobName"] for item in listed["TrainingJobSummaries"]] == [first]
    assert listed["TrainingJobSummaries"][0]["WarmPoolStatus"]["Status"] == "Available"
    find = "cat $SAGEMAKER_MANAGED_WARMPOOL_CACHE_DIRECTORY/word; ls /tmp/left /opt/ml/left; sleep 5; true"
    aws.sagemaker.create_training_job(**keeping(second, find))
    wait(aws, second, until=("Training",))
    assert pool_of(aws, second) == {"Status": "InUse"}
    reused = pool_of(aws, first)
    assert (reused["Status"], reused["ReusedByJob"]) == ("Reused", second)
    ends(aws, second, "Completed")
    said = "\n".join(log_of(aws, second))
    assert "kept" in said
    assert said.count("No such file") == 2
    wait_for_pool(aws, second, "Available")
    aws.sagemaker.delete_training_job(TrainingJobName=first)
    with pytest.raises(aws.sagemaker.exceptions.ClientError, match="retains an Available warm pool"):
        aws.sagemaker.delete_training_job(TrainingJobName=second)
    end_pool(aws, second)
    aws.sagemaker.delete_training_job(TrainingJobName=second)
    assert service.clary("doctor", check=False).stdout.count("pool_") == 0
    assert not list((service.home / "jobs").glob("pool_*")), "nothing of the pool is left on the disk"


def test_a_job_that_does_not_match_the_pool_gets_new_hosts(service, aws):
    first, second = unique("warm"), unique("other")
    aws.sagemaker.create_training_job(**keeping(first, "true"))
    ends(aws, first)
    wait_for_pool(aws, first, "Available")
    aws.sagemaker.create_training_job(**keeping(second, "true", VolumeSizeInGB=11))
    ends(aws, second, "Completed")
    assert pool_of(aws, first)["Status"] == "Available"
    for name in (first, second):
        end_pool(aws, name)


def test_a_pool_expires_after_its_period_and_a_failed_job_keeps_its_pool(service, aws):
    name = unique("brief")
    aws.sagemaker.create_training_job(**keeping(name, "exit 3", seconds=2))
    ends(aws, name, "Failed")
    ended = wait_for_pool(aws, name, "Terminated")
    assert ended["ResourceRetainedBillableTimeInSeconds"] >= 2, "it was Available for its period"


def test_a_pool_whose_idle_host_dies_is_terminated_and_the_next_job_starts_cold(service, aws):
    first, second = unique("warm"), unique("cold")
    aws.sagemaker.create_training_job(**keeping(first, "true"))
    ends(aws, first)
    wait_for_pool(aws, first, "Available")
    folder = only_pool(service)
    os.kill(agent_of(service, folder.name, "algo-1"), signal.SIGKILL)
    wait_for_pool(aws, first, "Terminated")
    aws.sagemaker.create_training_job(**keeping(second, "true"))
    ends(aws, second, "Completed")
    end_pool(aws, second)


def test_a_restarted_job_keeps_its_living_hosts_and_replaces_the_dead_one(service, aws):
    name = unique("partial")
    command = "echo began on $CURRENT_HOST; test -e $SAGEMAKER_MANAGED_WARMPOOL_CACHE_DIRECTORY/again && exit 0; "
    command += "touch $SAGEMAKER_MANAGED_WARMPOOL_CACHE_DIRECTORY/again; echo waits; sleep 600"
    request = keeping(name, command, InstanceCount=2)
    request["RetryStrategy"] = {"MaximumRetryAttempts": 2}
    aws.sagemaker.create_training_job(**request)
    wait_for_line(service, name, "waits")
    folder = only_pool(service)
    before = {host: agent_of(service, folder.name, host) for host in ("algo-1", "algo-2")}
    os.kill(before["algo-1"], signal.SIGKILL)
    ends(aws, name, "Completed")
    wait_for_pool(aws, name, "Available")
    after = {host: agent_of(service, folder.name, host) for host in ("algo-1", "algo-2")}
    assert after["algo-2"] == before["algo-2"], "the agent of the host that lived is the same process"
    assert after["algo-1"] != before["algo-1"]
    end_pool(aws, name)


@pytest.mark.long
def test_pools_survive_a_kill_of_the_service_and_end_when_it_stops(tmp_path):
    service = start_service(tmp_path / "home", SETTINGS)
    try:
        aws = Clients(service)
        first, second = unique("warm"), unique("warm")
        aws.sagemaker.create_training_job(**keeping(first, "true"))
        ends(aws, first)
        wait_for_pool(aws, first, "Available")
        os.kill(int((service.home / "run/service.json").read_text().split('"pid": ')[1].split(",")[0]), signal.SIGKILL)
        service = start_service(tmp_path / "home", SETTINGS)
        aws = Clients(service)
        assert pool_of(aws, first)["Status"] == "Available"
        aws.sagemaker.create_training_job(**keeping(second, "true"))
        ends(aws, second, "Completed")
        assert pool_of(aws, first)["ReusedByJob"] == second
        wait_for_pool(aws, second, "Available")
    finally:
        service.clary("down")
    assert not list((service.home / "jobs").glob("pool_*"))


@pytest.mark.long(10)
def test_an_idle_pool_is_ended_for_a_job_that_needs_its_hosts(service, aws):
    small, large = unique("warm"), unique("large")
    aws.sagemaker.create_training_job(**keeping(small, "true"))
    ends(aws, small)
    wait_for_pool(aws, small, "Available")
    request = job_request(large, "true")
    request["ResourceConfig"]["InstanceCount"] = 8  # all hosts of the service
    aws.sagemaker.create_training_job(**request)
    ends(aws, large, "Completed")
    assert pool_of(aws, small)["Status"] == "Terminated"


@pytest.mark.long
def test_an_impossible_keep_alive_period_is_refused_or_reported(aws):
    spot = keeping(unique("spot"), "true")
    spot |= {
        "EnableManagedSpotTraining": True,
        "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60},
    }
    aws.sagemaker.create_training_job(**spot)
    plain = unique("plain")
    aws.sagemaker.create_training_job(**job_request(plain, "true"))
    for name in (spot["TrainingJobName"], plain):
        ends(aws, name, "Completed")
        assert pool_of(aws, name) == {}
        with pytest.raises(aws.sagemaker.exceptions.ClientError, match="has no warm pool"):
            aws.sagemaker.update_training_job(TrainingJobName=name, ResourceConfig={"KeepAlivePeriodInSeconds": 60})
    said = "\n".join(log_of(aws, spot["TrainingJobName"]))
    assert "KeepAlivePeriodInSeconds has no effect on spot capacity" in said


OF_ONE_JOB = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "CLARY_COLLECTIVE_SECRET")
SEEN = """
import json, os, random, resource, sys
import numpy, torch
seen = {
    "environment": {name: value for name, value in os.environ.items() if os.environ["TRAINING_JOB_NAME"] not in value},
    "descriptors": sorted(os.listdir("/proc/self/fd"))[:-1],
    "argv": sys.argv, "path": sys.path, "flags": list(sys.flags), "executable": sys.executable, "folder": os.getcwd(),
    "limits": [resource.getrlimit(number) for number in range(16)], "umask": os.umask(0o22),
    "main": sorted(vars(sys.modules["__main__"])), "streams": [sys.stdout.encoding, sys.stdout.line_buffering],
    "parent": os.getppid(), "session": os.getsid(0) == os.getpid(), "name": __name__,
}
print("SEEN " + json.dumps(seen, default=str, sort_keys=True))
print("RANDOM", random.random(), numpy.random.rand(), float(torch.rand(1)), torch.initial_seed())
open("/opt/ml/model/weights", "w").write("kept")
"""


@pytest.mark.long(10)
def test_a_forked_program_sees_the_same_state_as_a_fresh_one_except_random_numbers(service, aws):
    seen, keys, numbers, names = [], [], [], []
    for _ in range(3):
        names.append(unique("forked"))
        request = script_request(aws, names[-1], {"train.py": SEEN})
        request["ResourceConfig"]["KeepAlivePeriodInSeconds"] = 600
        aws.sagemaker.create_training_job(**request)
        facts = wait(aws, names[-1])
        assert facts["TrainingJobStatus"] == "Completed", (facts.get("FailureReason"), log_of(aws, names[-1]))
        assert model_of(aws, facts) == {"weights": b"kept"}
        lines = log_of(aws, names[-1])
        seen.append(json.loads(next(line for line in lines if line.startswith("SEEN "))[5:]))
        keys.append([seen[-1]["environment"].pop(name) for name in OF_ONE_JOB])
        numbers += next(line for line in lines if line.startswith("RANDOM ")).split()[1:]
        wait_for_pool(aws, names[-1], "Available")
    end_pool(aws, names[-1])
    assert seen[0] == seen[1] == seen[2]
    assert not set(keys[0]) & set(keys[1])
    assert len(set(numbers)) == len(numbers), "no two are alike, within a job or from job to job"
    (log,) = [text for name in names[1:2] for text in (service.home / "jobs" / name).glob("1/algo-1/agent.log")]
    assert "not used" not in log.read_text()
