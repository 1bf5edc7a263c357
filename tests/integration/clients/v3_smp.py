"""SDK v3: ModelTrainer with `Torchrun(smp=SMP(...))`, SMP v2, on two hosts with two ranks each.

python v3_smp.py SCRIPT
"""

import logging
import sys
import tarfile
import tempfile
from urllib.parse import urlparse

import boto3
from common_client import CPU_TYPE, ROLE, SOURCE, report
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode
from sagemaker.train.distributed import SMP, Torchrun

logging.basicConfig(level=logging.INFO)  # the SDK logs what a job prints
trainer = ModelTrainer(
    training_image="registry.example/team/bring-your-own:1",
    role=ROLE,
    compute=Compute(instance_type=CPU_TYPE, instance_count=2),
    base_job_name="v3-smp",
    source_code=SourceCode(source_dir=SOURCE, entry_script=sys.argv[1]),
    distributed=Torchrun(
        process_count_per_node=2, smp=SMP(hybrid_shard_degree=2, sm_activation_offloading=True, random_seed=5)
    ),
)
trainer.train(wait=True, logs=True)
job = trainer._latest_training_job
place = urlparse(job.model_artifacts.s3_model_artifacts)
ranks = {}
with tempfile.NamedTemporaryFile(suffix=".tar.gz") as file:
    boto3.client("s3").download_fileobj(place.netloc, place.path.lstrip("/"), file)
    file.flush()
    with tarfile.open(file.name) as archive:
        for member in archive.getmembers():
            if member.isfile() and member.name.endswith(".json") and "/" not in member.name:
                ranks[member.name] = archive.extractfile(member).read().decode()
report(name=job.training_job_name, status=job.training_job_status, ranks=ranks)
