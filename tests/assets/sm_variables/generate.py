"""Script that writes the goldens of this folder: the variables that AWS's own launchers set for sample jobs.

Run by hand, with the interpreter of an environment that has sagemaker-training 5.1.4; tests read its sample jobs:

    python generate.py toolkit
    python generate.py v3 PATH/sagemaker/train/container_drivers/scripts/environment.py    # of SDK 3.27

Each golden holds a job (`job`) and its variables (`variables`), in which `/opt/ml` replaces the folder of the run.
"""

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
REQUESTS = HERE.parent / "requests"
SHIMS = HERE.parents[2] / "src/clary/agent/launchers/shims/bin"  # first in a job's PATH, which the toolkit searches
TRAIN = {"name": "training", "content_type": None}
TEXT = {"name": "my-text.v1", "content_type": "text/csv"}


def two_hosts(instance_type):
    return [["algo-1", "homogeneousCluster", instance_type], ["algo-2", "homogeneousCluster", instance_type]]


def job(hyperparameters, hosts, *, current="algo-1", channels=(), num_gpus=0, num_cpus=2, environment=None):
    return {
        "hyperparameters": hyperparameters,
        "hosts": hosts,
        "current_host": current,
        "channels": list(channels),
        "num_gpus": num_gpus,
        "num_cpus": num_cpus,
        "environment": environment or {},
    }


def of_request(name, hosts, **facts):
    request = json.loads((REQUESTS / f"{name}.CreateTrainingJob.json").read_text())
    return job(request.get("HyperParameters") or {}, hosts, **facts)


ODD = {
    "sagemaker_program": '"dir/train.py"',
    "sagemaker_submit_directory": '"s3://bucket/x/source/sourcedir.tar.gz"',
    "sagemaker_container_log_level": "10",
    "sagemaker_region": '"us-west-2"',
    "sagemaker_custom_flag": '{"a": [1, null]}',
    "_tuning_objective_metric": '"loss"',
    "b": "2",
    "my-param": "[1, 2]",
    "quote": '"it\'s \\"here\\""',
    "raw quote": "it's",
    "newline": '"a\\nb"',
    "unicode": '"\\u00e9\\u4e2d"',
    "raw_unicode": "\u00e9\u4e2d",
    "none": "null",
    "empty": '""',
    "truth": "true",
    "number": "1e3",
    "nested": '{"z": {"y": 1}, "a": [true, null]}',
    "nan": "NaN",
}
HETERO = [["algo-3", "g1", "ml.p4d.24xlarge"], ["algo-1", "g1", "ml.p4d.24xlarge"], ["algo-2", "g2", "ml.c5.xlarge"]]
MANY = [[f"algo-{n}", "homogeneousCluster", "ml.m5.xlarge"] for n in range(1, 13)]


def cases():
    p4d, one_m5 = two_hosts("ml.p4d.24xlarge"), [["algo-1", "homogeneousCluster", "ml.m5.xlarge"]]
    return {
        "pt-none": of_request("pt-none", one_m5, channels=[TRAIN]),
        "pt-torchdist": of_request("pt-torchdist", p4d, current="algo-2", channels=[TRAIN, TEXT], num_gpus=8),
        "pt-mpi": of_request("pt-mpi", p4d, channels=[TRAIN], num_gpus=8, num_cpus=96),
        "pt-smp": of_request("pt-smp", p4d, channels=[TRAIN], num_gpus=8),
        "pt-smddp": of_request("pt-smddp", p4d, current="algo-2", num_gpus=8),
        "pt-hetero": of_request("pt-hetero", HETERO, current="algo-3", channels=[TRAIN]),
        "pt-hetero-other-group": of_request("pt-hetero", HETERO, current="algo-2"),
        "tf-ps": of_request("tf-ps", p4d, current="algo-2"),
        "tf-mwms": of_request("tf-mwms", p4d),
        "hf": of_request("hf", one_m5),
        "generic": of_request("generic", one_m5),
        "generic-src": of_request("generic-src", one_m5, channels=[TRAIN]),
        "odd-values": job(ODD, one_m5, channels=[TEXT]),
        "nothing": job({}, one_m5),
        "twelve-hosts": job({"a": "1"}, MANY, current="algo-10"),
        "program-variable": of_request("pt-none", one_m5, environment={"SAGEMAKER_PROGRAM": "other.py"}),
        "only-program-variable": job({"a": "1"}, one_m5, environment={"SAGEMAKER_PROGRAM": "dir/train.py"}),
        "empty-program-variable": of_request("pt-none", one_m5, environment={"SAGEMAKER_PROGRAM": ""}),
        "framework-module": job({}, one_m5, environment={"SAGEMAKER_TRAINING_MODULE": "my_framework:main"}),
    }


def documents(facts):
    groups = {}
    for name, group, instance_type in facts["hosts"]:
        entry = groups.setdefault(group, {"hosts": [], "instance_group_name": group, "instance_type": instance_type})
        entry["hosts"] = sorted([*entry["hosts"], name])
    current = next(host for host in facts["hosts"] if host[0] == facts["current_host"])
    resources = {
        "current_group_name": current[1],
        "current_host": current[0],
        "current_instance_type": current[2],
        "hosts": sorted(host[0] for host in facts["hosts"]),
        "instance_groups": list(groups.values()),
        "network_interface_name": "eth0",
        "topology": None,
    }
    inputs = {}
    for channel in facts["channels"]:
        entry = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
        if channel["content_type"]:
            entry["ContentType"] = channel["content_type"]
        inputs[channel["name"]] = entry
    return resources, inputs


def write(name, facts, variables):
    text = json.dumps({"job": facts, "variables": variables}, indent=1, sort_keys=True)
    (HERE / f"{name}.json").write_text(text + "\n")
    print(name, len(variables))


def toolkit():
    base = tempfile.mkdtemp()
    config = Path(base, "input", "config")
    config.mkdir(parents=True)
    os.environ["SAGEMAKER_BASE_DIR"] = base
    os.environ["PATH"] = f"{SHIMS}:{os.environ['PATH']}"
    from sagemaker_training import environment

    for name, facts in cases().items():
        resources, inputs = documents(facts)
        for stem, document in (
            ("resourceconfig", resources),
            ("inputdataconfig", inputs),
            ("hyperparameters", facts["hyperparameters"]),
        ):
            (config / f"{stem}.json").write_text(json.dumps(document))
        environment.num_gpus = lambda facts=facts: facts["num_gpus"]
        environment.num_cpus = lambda facts=facts: facts["num_cpus"]
        os.environ.update({"TRAINING_JOB_NAME": "job-1", **facts["environment"]})
        variables = environment.Environment().to_env_vars()
        write(name, facts, {key: value.replace(base, "/opt/ml") for key, value in variables.items()})
        for key in facts["environment"]:
            del os.environ[key]


def v3(path):
    spec = importlib.util.spec_from_file_location("v3_environment", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    os.environ["TRAINING_JOB_NAME"] = "job-1"
    for name in ("pt-none", "pt-torchdist", "twelve-hosts", "generic"):
        facts = cases()[name]
        values = facts["hyperparameters"].items()
        facts["hyperparameters"] = {key: value for key, value in values if not key.startswith("sagemaker_")}
        facts["hyperparameters"]["my-param"] = "[1, 2]"
        resources, inputs = documents(facts)
        module.num_gpus = lambda facts=facts: facts["num_gpus"]
        module.num_cpus = lambda facts=facts: facts["num_cpus"]
        with tempfile.NamedTemporaryFile("r") as file:
            module.set_env(resources, inputs, facts["hyperparameters"], file.name)
            lines = file.read().splitlines()
        pairs = (line.removeprefix("export ").split("=", 1) for line in lines)
        write(f"v3-{name}", facts, {key: value[1:-1] for key, value in pairs})


if __name__ == "__main__":
    toolkit() if sys.argv[1] == "toolkit" else v3(sys.argv[2])
