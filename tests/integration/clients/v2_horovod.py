"""SDK v2: PyTorch on two hosts with Horovod under the `mpi` distribution.

python v2_horovod.py SCRIPT_FOLDER SCRIPT DIGITS_FILE
"""

import sys
import tarfile
import tempfile

import sagemaker
from common_client import GPU_TYPE, ROLE, report
from sagemaker.pytorch import PyTorch
from sagemaker.s3 import S3Downloader, S3Uploader

folder, script, digits = sys.argv[1:]
session = sagemaker.Session()
uri = S3Uploader.upload(digits, f"s3://{session.default_bucket()}/horovod-digits", sagemaker_session=session)
estimator = PyTorch(
    entry_point=script,
    source_dir=folder,
    role=ROLE,
    framework_version="2.2.0",
    py_version="py310",
    instance_count=2,
    instance_type=GPU_TYPE,
    distribution={"mpi": {"enabled": True, "processes_per_host": 2}},
    hyperparameters={"epochs": 2},
    sagemaker_session=session,
)
estimator.fit({"digits": uri.rsplit("/", 1)[0]}, wait=True, logs="None")  # asks every 5 s, with logs every 30 s
ranks = {}
with tempfile.TemporaryDirectory() as target:
    S3Downloader.download(estimator.model_data, target, sagemaker_session=session)
    with tarfile.open(f"{target}/model.tar.gz") as archive:
        for member in archive.getmembers():
            if member.isfile():
                ranks[member.name] = archive.extractfile(member).read().decode()
report(name=estimator.latest_training_job.name, ranks=ranks)
