"""Scripts that ask AWS's packages about their job: hosts of two groups, plain processes, and `clary run`."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from boto3_clients import Clients, unique
from program_jobs import channel, model_of, put, run, script_request
from running_service import SETTINGS, start_service

pytestmark = [pytest.mark.clients, pytest.mark.timeout(150)]

# Writes what a host's program sees as a file of the model. The second import is how scripts of scikit-learn begin.
ASKS = """
import json, os, pathlib
from sagemaker_training import environment
from sagemaker_containers.beta.framework import content_types, encoders, env, modules, transformer, worker
import sagemaker_containers
job = environment.Environment()
older = sagemaker_containers.training_env()
facts = {
    "is_as_told": dict(job) == json.loads(os.environ["SM_TRAINING_ENV"]),
    "arguments": job.to_cmd_args() == json.loads(os.environ["SM_USER_ARGS"]),
    "variables": sorted(k for k, v in job.to_env_vars().items() if os.environ.get(k) != v),
    "group": [job.current_instance_group, job.current_instance_group_hosts, job.is_hetero, job.current_instance_type],
    "groups": {name: group["hosts"] for name, group in job.instance_groups_dict.items()},
    "older": [older.hosts, older.current_host, older.hyperparameters, older.num_gpus],
    "data": {p.name: p.read_text() for p in pathlib.Path(job.channel_input_dirs["train"]).iterdir()},
    "region": os.environ["SAGEMAKER_REGION"],
    "is_private": job.model_dir == "/opt/ml/model",
}
pathlib.Path(job.model_dir, job.current_host + ".json").write_text(json.dumps(facts))
"""
GROUPS = [
    {"InstanceGroupName": "gpus", "InstanceType": "ml.m5.xlarge", "InstanceCount": 1},
    {"InstanceGroupName": "cpus", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
]


def facts_of_two_groups(aws) -> dict:
    """Run the script on two hosts of two groups; return its findings by host."""
    uri = put(aws, "toolkit-names/train/a.txt", "a")
    request = script_request(
        aws,
        unique("toolkit-names"),
        {"train.py": ASKS},
        hyperparameters={"epochs": "3", "name": '"x"'},
        InputDataConfig=[channel("train", uri)],
    )
    for member in ("InstanceCount", "InstanceType"):
        del request["ResourceConfig"][member]
    request["ResourceConfig"]["InstanceGroups"] = GROUPS
    return {name.removesuffix(".json"): json.loads(body) for name, body in model_of(aws, run(aws, request)).items()}


def check(facts: dict) -> None:
    assert sorted(facts) == ["algo-1", "algo-2"]
    groups = {"gpus": ["algo-1"], "cpus": ["algo-2"]}
    for host, group, instance_type in (("algo-1", "gpus", "ml.m5.xlarge"), ("algo-2", "cpus", "ml.c5.xlarge")):
        seen = facts[host]
        assert (seen["is_as_told"], seen["arguments"], seen["variables"]) == (True, True, [])
        assert seen["group"] == [group, [host], True, instance_type]
        assert seen["groups"] == groups
        assert seen["older"] == [["algo-1", "algo-2"], host, {"epochs": 3, "name": "x"}, 0]
        assert seen["data"] == {"a.txt": "a"}
        assert seen["region"]


@pytest.mark.long(15)
def test_a_script_learns_its_groups_from_the_toolkits_environment(aws):
    check(facts_of_two_groups(aws))


@pytest.mark.long(30)
def test_in_plain_processes_the_script_reads_its_own_tree(tmp_path):
    service = start_service(tmp_path / "home", SETTINGS, CLARY_ISOLATION="processes")
    try:
        facts = facts_of_two_groups(Clients(service))
    finally:
        service.clary("down", check=False)
        shutil.rmtree(tmp_path / "home", ignore_errors=True)
    check(facts)
    assert not any(seen["is_private"] for seen in facts.values())


def test_a_script_runs_without_a_job_under_clary_run(tmp_path):
    program = (
        "from sagemaker_containers.beta.framework import worker, encoders\n"
        "from sagemaker_training import environment\n"
        "job = environment.Environment(); print(len(job.hosts), job.is_hetero, job.model_dir)"
    )
    ml = tmp_path / "opt-ml"
    config = ml / "input" / "config"
    config.mkdir(parents=True)
    resources = {"current_host": "here", "hosts": ["here", "there"]}
    documents = {"resourceconfig": resources, "inputdataconfig": {}, "hyperparameters": {}}
    for stem, document in documents.items():
        (config / f"{stem}.json").write_text(json.dumps(document))
    done = subprocess.run(
        [sys.executable, "-m", "clary.cli.main", "run", sys.executable, "-c", program],
        env={**os.environ, "SAGEMAKER_BASE_DIR": str(ml)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"2 False {ml}/model\n"), done.stderr
