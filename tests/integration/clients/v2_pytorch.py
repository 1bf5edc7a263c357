"""SDK v2: PyTorch with torch_distributed on two hosts, logs streamed, attach, analytics, model fetched."""

import tarfile
import tempfile

import sagemaker
from common_client import GPU_TYPE, ROLE, SOURCE, report
from sagemaker.pytorch import PyTorch
from sagemaker.s3 import S3Downloader

session = sagemaker.Session()
estimator = PyTorch(
    entry_point="allreduce.py",
    source_dir=SOURCE,
    role=ROLE,
    framework_version="2.8.0",
    py_version="py312",
    instance_count=2,
    instance_type=GPU_TYPE,
    distribution={"torch_distributed": {"enabled": True}},
    hyperparameters={"text": 'it\'s "quoted" \u00fc\nline', "learning-rate": 0.5},
    metric_definitions=[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
    sagemaker_session=session,
)
estimator.fit(wait=True)
name = estimator.latest_training_job.name
attached = PyTorch.attach(name, sagemaker_session=session)
with tempfile.TemporaryDirectory() as folder:
    S3Downloader.download(estimator.model_data, folder, sagemaker_session=session)
    with tarfile.open(f"{folder}/model.tar.gz") as archive:
        members = sorted(member.name for member in archive.getmembers() if member.isfile())
frame = estimator.training_job_analytics.dataframe()
report(
    name=name,
    model_data=estimator.model_data,
    attached_text=attached.hyperparameters()["text"],
    members=members,
    metrics=sorted(frame["value"].tolist()),
)
