"""Program that prints the values of sample jobs by AWS's package or Clary's: the one that the interpreter imports.

    python values_program.py BASE training      # sagemaker_training.environment.Environment()
    python values_program.py BASE containers    # sagemaker_containers.training_env()

BASE is an empty folder that becomes the job's `/opt/ml`. `tests/assets/containers_values/values.json` is the output
with `containers` in Python 3.8 with sagemaker-containers 2.8.6.post2: later Pythons cannot import that package, so no
test can run it.
"""

import json
import multiprocessing
import os
import runpy
import stat
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[3]
SAMPLES = runpy.run_path(str(TESTS / "assets" / "sm_variables" / "generate.py"))
SET_BY_PACKAGES = ("CURRENT_HOST", "SAGEMAKER_REGION", "SAGEMAKER_JOB_NAME")
FOR_CONTAINERS = ("framework-module", "local-mode", "odd-values", "pt-hetero", "pt-torchdist", "told-by-variables")


def cases():
    """Yield the name, the three documents and the variables of each sample job."""
    samples = SAMPLES["cases"]()
    for name, facts in samples.items():
        yield (name, *SAMPLES["documents"](facts), facts["hyperparameters"], facts["environment"])
    told = {
        "SAGEMAKER_PROGRAM": "other.py",
        "SM_HP_MP_PARAMETERS": '{"partitions": 2}',
        "AWS_DEFAULT_REGION": "eu-west-1",
    }
    resources, inputs = SAMPLES["documents"](samples["odd-values"])
    yield "told-by-variables", resources, inputs, {"sagemaker_program": "train.py", "sagemaker_job_name": "j"}, told
    yield "no-mp-parameters", resources, inputs, {"a": 1}, {"SM_HP_MP_PARAMETERS": "{}"}
    yield "topology", {**resources, "topology": [{"hostName": "algo-1"}]}, inputs, {"a": "b"}, {}
    yield "local-mode", {"current_host": "h", "hosts": ["h", "i"]}, {}, {"sagemaker_s3_output": '"s3://b/p"'}, {}
    groups = {"sagemaker_distribution_instance_groups": '["g2"]', "sagemaker_mpi_enabled": "true"}
    yield ("other-group", *SAMPLES["documents"](samples["pt-hetero"]), groups, {})


def main(base, package):
    """Print a JSON object: name of the job -> values of the package."""
    config = Path(base, "input", "config")
    config.mkdir(parents=True)
    tool = Path(base, "nvidia-smi")
    tool.write_text("#!/bin/sh\necho 'GPU 0: a'\necho 'GPU 1: b'\necho other\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    os.environ["PATH"] = f"{base}:{SAMPLES['SHIMS']}:{os.environ['PATH']}"
    os.environ["SAGEMAKER_BASE_DIR"] = base
    os.environ["TRAINING_JOB_NAME"] = "job-1"
    multiprocessing.cpu_count = lambda: 3  # on any machine
    if package == "training":
        from sagemaker_training.environment import Environment as environment
    else:
        from sagemaker_containers import training_env as environment
    said = {}
    for name, resources, inputs, hyperparameters, variables in cases():
        if package == "containers" and name not in FOR_CONTAINERS:
            continue
        documents = {"resourceconfig": resources, "inputdataconfig": inputs, "hyperparameters": hyperparameters}
        for stem, document in documents.items():
            (config / f"{stem}.json").write_text(json.dumps(document))
        for variable in SET_BY_PACKAGES:
            os.environ.pop(variable, None)
        os.environ.update(variables)
        env = environment()
        said[name] = {
            "properties": dict(env),
            "length": len(env),
            "hosts_by_key": env["hosts"],
            "arguments": env.to_cmd_args(),
            "variables": env.to_env_vars(),
            "s3_output": env.sagemaker_s3_output(),
            "set": {variable: os.environ[variable] for variable in SET_BY_PACKAGES},
        }
        for variable in variables:
            del os.environ[variable]
    print(json.dumps(said, indent=1, sort_keys=True).replace(base, "/opt/ml"))


if __name__ == "__main__":
    main(*sys.argv[1:])
