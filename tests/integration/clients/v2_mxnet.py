"""SDK v2: an MXNet estimator with parameter servers on two hosts.

python v2_mxnet.py distribution|distributions SCRIPT DIGITS NAME=VALUE...

`distributions` is the argument's name in SDK v1, which v2 accepts with a warning.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

import sagemaker
from common_client import ROLE, report
from sagemaker.mxnet import MXNet
from sagemaker.s3 import S3Downloader

argument, script, digits, *pairs = sys.argv[1:]
session = sagemaker.Session()
uri = session.upload_data(digits, key_prefix="v2-mxnet-digits")
estimator = MXNet(
    entry_point=Path(script).name,
    source_dir=str(Path(script).parent),
    role=ROLE,
    framework_version="1.9.0",
    py_version="py38",
    instance_count=2,
    instance_type="ml.m5.xlarge",
    hyperparameters=dict(pair.split("=", 1) for pair in pairs),
    sagemaker_session=session,
    **{argument: {"parameter_server": {"enabled": True}}},
)
estimator.fit({"digits": uri.rpartition("/")[0] + "/"}, wait=True, logs="None")  # polls every 5 s
hosts = {}
with tempfile.TemporaryDirectory() as folder:
    S3Downloader.download(estimator.model_data, folder, sagemaker_session=session)
    with tarfile.open(f"{folder}/model.tar.gz") as archive:
        for member in archive.getmembers():
            if member.name.endswith(".json"):
                hosts[member.name] = json.load(archive.extractfile(member))
report(name=estimator.latest_training_job.name, hosts=hosts)
