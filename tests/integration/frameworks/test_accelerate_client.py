"""`accelerate launch` with a SageMaker configuration, as a client: it submits jobs on two hosts by SDK v2.

The tests use accelerate 1.1: version 1.15 fails before it creates an estimator, since its SageMakerConfig lacks a
member that it reads. Both versions refuse `distributed_type: 'NO'` in such a configuration.
"""

import json
import os
import subprocess

import pytest
from boto3_clients import ROLE, Clients
from library_jobs import INSTANCE_TYPE, library_service
from program_jobs import model_of
from running_service import CLIENTS, SDK2_PYTHON

from needs import VENVS

CONFIGURATION = """\
compute_environment: AMAZON_SAGEMAKER
distributed_type: DATA_PARALLEL
base_job_name: accelerate-ddp
ec2_instance_type: {instance_type}
iam_role_name: {role}
image_uri: registry.example/team/hf:1
mixed_precision: 'no'
num_machines: {num_hosts}
profile: null
py_version: py310
pytorch_version: 2.0.0
region: {region}
transformers_version: 4.28.1
use_cpu: false
"""

pytestmark = [
    pytest.mark.long(60),
    pytest.mark.clients,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("accelerate-client"),
    pytest.mark.needs("hf", "sdk2", "train", "trainer-4.46"),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with library_service(tmp_path_factory.mktemp("accelerate") / "home", "hf") as running:
        yield running


def launch(service, folder, script, *, num_hosts):
    """Submit a script by `accelerate launch`; return the files of the job's model, by name."""
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text(script)
    configuration = folder / "sagemaker.yaml"
    region = service.environment["AWS_REGION"]
    facts = {"instance_type": INSTANCE_TYPE, "role": ROLE, "num_hosts": num_hosts, "region": region}
    configuration.write_text(CONFIGURATION.format(**facts))
    packages = [
        str(path) for name in ("train", "trainer-4.46") for path in VENVS.glob(f"{name}/lib/python3*/site-packages")
    ]
    keys = [
        f"--aws_{name}={service.environment[f'AWS_{name.upper()}']}" for name in ("access_key_id", "secret_access_key")
    ]
    options = ["--config_file", str(configuration), *keys, str(folder / "code" / "train.py")]
    ran = subprocess.run(
        [str(SDK2_PYTHON), "-m", "accelerate.commands.launch", *options],
        env={**service.environment, "PYTHONPATH": os.pathsep.join(packages), "SAGEMAKER_SUPPRESS_V2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said[-5000:]
    (place,) = [
        line.rpartition(" ")[2] for line in said.splitlines() if line.startswith("You can find your model data")
    ]
    aws = Clients(service)
    job = place.removesuffix("/output/model.tar.gz").rpartition("/")[2]
    return model_of(aws, aws.sagemaker.describe_training_job(TrainingJobName=job))


def test_data_parallel_starts_ranks_over_smddp_on_two_hosts(service, tmp_path):
    script = (CLIENTS / "source/smddp_accelerate.py").read_text()
    files = launch(service, tmp_path, script, num_hosts=2)
    for rank in range(4):
        facts = json.loads(files[f"rank-{rank}.json"])
        assert (facts["backend"], facts["processes"], facts["wrapper"]) == ("smddp", 4, "DistributedDataParallel")
        assert facts["equal"]
        assert facts["loss"] < 1.0
