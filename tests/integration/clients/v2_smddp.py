"""SDK v2: PyTorch on two hosts with SMDDP's backend under one of the three distributions, or with SMP v1 or v2.

python v2_smddp.py smdistributed|pytorchddp|torch_distributed|modelparallel|modelparallel_v2 SCRIPT NAME=VALUE...
"""

import sys
import tarfile
import tempfile

import sagemaker
from common_client import GPU_TYPE, ROLE, SOURCE, report
from sagemaker.pytorch import PyTorch
from sagemaker.s3 import S3Downloader

form, script, *pairs = sys.argv[1:]
distributions = {
    "smdistributed": {"smdistributed": {"dataparallel": {"enabled": True}}},
    "pytorchddp": {"pytorchddp": {"enabled": True}},
    "torch_distributed": {"torch_distributed": {"enabled": True}},
    "modelparallel": {
        "smdistributed": {
            "modelparallel": {
                "enabled": True,
                "parameters": {"partitions": 2, "microbatches": 4, "ddp": True, "placement_strategy": "cluster"},
            }
        },
        "mpi": {"enabled": True, "processes_per_host": 2},
    },
    "modelparallel_v2": {
        "torch_distributed": {"enabled": True},
        "smdistributed": {
            "modelparallel": {
                "enabled": True,
                "parameters": {"hybrid_shard_degree": 2, "activation_loading_horizon": 3},
            }
        },
    },
}
session = sagemaker.Session()
estimator = PyTorch(
    entry_point=script,
    source_dir=SOURCE,
    role=ROLE,
    framework_version="2.2.0",
    py_version="py310",
    instance_count=2,
    instance_type=GPU_TYPE if form in ("torch_distributed", "modelparallel", "modelparallel_v2") else "ml.p4d.24xlarge",
    distribution=distributions[form],
    hyperparameters=dict(pair.split("=", 1) for pair in pairs),
    sagemaker_session=session,
)
estimator.fit(wait=True, logs="None")  # asks every 5 s for the status, with logs every 30 s
ranks = {}
with tempfile.TemporaryDirectory() as folder:
    S3Downloader.download(estimator.model_data, folder, sagemaker_session=session)
    with tarfile.open(f"{folder}/model.tar.gz") as archive:
        for member in archive.getmembers():
            if member.isfile() and member.name.endswith(".json") and "/" not in member.name:
                ranks[member.name] = archive.extractfile(member).read().decode()
report(name=estimator.latest_training_job.name, ranks=ranks)
