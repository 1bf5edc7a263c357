"""Jobs of libraries on top of torch: a service with several environments, and runs of one program on two hosts."""

import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

from boto3_clients import log_of, unique
from program_jobs import model_of, run, script_request
from running_service import SETTINGS, start_service

from clary.agent.environments.train_library import library_folder, write_train_library
from clary.contract.ml_tree import MlTree
from needs import python_of

PROGRAMS = Path(__file__).parent / "frameworks"
EXTENSIONS = {"own_extensions.py": (PROGRAMS / "own_extensions.py").read_text()}
INSTANCE_TYPE = "ml.p4d.24xlarge"  # gives two ranks per host on a machine with two cores


@contextmanager
def library_service(home, *environments, **variables):
    """Run a service in which each environment of `needs` serves the image `team/NAME:1`; remove it at the end."""
    images = "".join(f'"team/{name}:*" = "{name}"\n' for name in environments)
    pythons = "".join(f'"{name}" = "{python_of(name)}"\n' for name in environments)
    settings = SETTINGS.replace("[images]\n", f"[images]\n{images}", 1)
    settings = settings.replace("[environments]\n", f"[environments]\n{pythons}", 1)
    service = start_service(home, settings, **variables)
    try:
        yield service
    finally:
        service.clary("down", check=False)
        shutil.rmtree(home, ignore_errors=True)


def request_of(aws, environment, program, hyperparameters, *, num_hosts=2, files=None, **members):
    """Return the request of a job that runs a file of `frameworks` on hosts with two ranks each."""
    request = script_request(
        aws,
        unique(environment.replace(".", "-")),
        {"train.py": (PROGRAMS / program).read_text(), **EXTENSIONS, **(files or {})},
        hyperparameters=hyperparameters,
        ResourceConfig={"InstanceType": INSTANCE_TYPE, "VolumeSizeInGB": 10},
        instance_count=num_hosts,
        **members,
    )
    request["AlgorithmSpecification"]["TrainingImage"] = f"team/{environment}:1"
    return request


def facts_of(aws, request, *, num_ranks, timeout_s=240):
    """Run a job; return the facts that each rank wrote to its model as rank-NUMBER.json."""
    described = run(aws, request, timeout_s=timeout_s)
    words = "\n".join(log_of(aws, request["TrainingJobName"])[-60:])
    assert described["TrainingJobStatus"] == "Completed", f"{described.get('FailureReason')}\n{words}"
    files = model_of(aws, described)
    return [json.loads(files[f"rank-{rank}.json"]) for rank in range(num_ranks)]


def run_ranks(environment, program, *arguments, num_ranks, folder, timeout_s=100, **variables):
    """Run a program without a job, by torchrun if there are several ranks; return the facts of each rank."""
    folder.mkdir(exist_ok=True)
    tree = MlTree(folder / "ml")
    write_train_library(tree)  # as an agent does for jobs
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"] if num_ranks > 1 else []
    ran = subprocess.run(
        [str(python_of(environment)), *launcher, str(PROGRAMS / program), *arguments],
        env={
            **os.environ,
            "PATH": f"{python_of(environment).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(library_folder(tree)),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "RESULT_FOLDER": str(folder),
            **variables,
        },
        timeout=timeout_s,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(num_ranks)]
