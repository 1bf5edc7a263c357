"""Jobs of each framework as victims of attacks, and attacks by other users of the machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from contextlib import contextmanager

import pytest
from boto3_clients import log_of, unique
from framework_jobs import PROGRAMS
from program_jobs import script_request
from running_service import ROOT, SETTINGS, start_service

from needs import python_of

DOORS = PROGRAMS / "doors"
LIMIT_S = 200
STRANGER = 12345  # an unused user id
TENSORFLOW = "763104351884.dkr.ecr.us-west-2.amazonaws.com/tensorflow-training:2.16-cpu-py310"
MXNET = "763104351884.dkr.ecr.us-west-2.amazonaws.com/mxnet-training:1.9.0-cpu-py38"
_IMAGES = "\n".join(
    f'"{image}" = "{environment}"'
    for image, environment in (
        ("team/jax:*", "jax"),
        ("team/deepspeed:*", "deepspeed"),
        ("mxnet-training:*", "mxnet"),
        ("tensorflow-training:*", "tensorflow"),
    )
)
_MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "1"}
WAYS = {  # framework -> (image, hyperparameters)
    "horovod": (None, _MPI),
    "torch": (None, {"sagemaker_torch_distributed_enabled": "true"}),
    "deepspeed": ("team/deepspeed:1", {}),
    "jax": ("team/jax:1", {}),
    "mirrored": (TENSORFLOW, {"sagemaker_multi_worker_mirrored_strategy_enabled": "true"}),
    "servers": (TENSORFLOW, {"sagemaker_parameter_server_enabled": "true"}),
    "mxnet": (MXNET, {"sagemaker_parameter_server_enabled": "true"}),
}
_NEEDS = {"deepspeed": "deepspeed", "jax": "jax", "mirrored": "tensorflow", "servers": "tensorflow", "mxnet": "mxnet"}


def ways():
    """Return pytest parameters, one per framework; frameworks with their own environment are marked long."""
    long = [pytest.mark.long]
    return [
        pytest.param(way, marks=[pytest.mark.needs(_NEEDS.get(way, "train")), *(long if way in _NEEDS else ())])
        for way in WAYS
    ]


@contextmanager
def service_of_all_frameworks(isolation):
    """Run a service whose state folder is not below /tmp, so that hosts could see it."""
    home = ROOT / ".cache" / f"doors-{time.time_ns()}"
    environments = "".join(f'{name} = "{python_of(name)}"\n' for name in ("deepspeed", "jax", "mxnet", "tensorflow"))
    settings = SETTINGS.replace('"tensorflow-training:*" = "train"', _IMAGES)
    assert settings != SETTINGS
    running = start_service(home, settings + environments, CLARY_ISOLATION=isolation)
    try:
        yield running
    finally:
        running.clary("down", check=False)
        shutil.rmtree(home, ignore_errors=True)


def victim_request(aws, way, hyperparameters=None):
    """Return the request of a job that forms a group by a framework and runs until it is stopped."""
    image, ours = WAYS[way]
    request = script_request(
        aws,
        unique(f"victim-{way}"),
        {"train.py": (DOORS / "victim_program.py").read_text()},
        hyperparameters={**ours, "way": way, **(hyperparameters or {})},
        instance_count=2,
    )
    if image is not None:
        request["AlgorithmSpecification"]["TrainingImage"] = image
    return request


def told(aws, name, word):
    """Wait for a line of a job that holds this word; return the JSON after it."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        lines = log_of(aws, name)
        for line in lines:
            if f"{word} {{" in line or f"{word} [" in line:
                return json.JSONDecoder().raw_decode(line.partition(f"{word} ")[2])[0]  # mpirun may append output
        facts = aws.sagemaker.describe_training_job(TrainingJobName=name)
        assert facts["TrainingJobStatus"] == "InProgress", (facts.get("FailureReason"), lines[-40:])
        time.sleep(0.5)
    raise AssertionError(f"{name} has not said {word} within {LIMIT_S} s: {lines[-40:]}")


def wait_for_more_steps(aws, name, more=2):
    """Wait until a job has made `more` steps; fail after 60 s."""
    wanted, deadline_s = _last_step(aws, name) + more, time.monotonic() + 60
    while _last_step(aws, name) < wanted:
        assert time.monotonic() < deadline_s, log_of(aws, name)[-40:]
        time.sleep(0.5)


def as_stranger(work):
    """Call a function in a process of another user of this machine; return its result."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(STRANGER, STRANGER, STRANGER)
            os.setresuid(STRANGER, STRANGER, STRANGER)
            os.write(write_end, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        found = file.read()
    os.waitpid(child, 0)
    return json.loads(found)


def _last_step(aws, name):
    return max((int(number) for line in log_of(aws, name) for number in re.findall(r"step (\d+)", line)), default=-1)


def answers(address, port):
    """Return whether a process accepts connections at a port."""
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True
