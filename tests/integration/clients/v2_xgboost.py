"""SDK v2: the generic Estimator with the image of XGBoost and no entry point, as SageMaker's examples use it.

python v2_xgboost.py FOLDER: FOLDER has train.csv, validation.csv, train.libsvm and validation.libsvm.
"""

import os
import sys
import tarfile

import sagemaker
from common_client import CPU_TYPE, ROLE, report
from sagemaker import image_uris
from sagemaker.estimator import Estimator
from sagemaker.exceptions import UnexpectedStatusException
from sagemaker.inputs import TrainingInput
from sagemaker.s3 import S3Downloader

FOLDER = sys.argv[1]
session = sagemaker.Session()


def train(file_type, content_type, num_round=20, **hyperparameters):
    """Train on the files of one type; return the estimator."""
    estimator = Estimator(
        image_uri=image_uris.retrieve("xgboost", session.boto_region_name, "1.7-1"),
        role=ROLE,
        instance_count=1,
        instance_type=CPU_TYPE,
        volume_size=5,
        output_path=f"s3://{session.default_bucket()}/xgboost/output",
        sagemaker_session=session,
    )
    estimator.set_hyperparameters(objective="binary:logistic", eval_metric="auc,error", max_depth=3, eta=0.3)
    estimator.set_hyperparameters(num_round=num_round, seed=7, **hyperparameters)
    channels = {}
    for name in ("train", "validation"):
        path = os.path.join(FOLDER, f"{name}.{file_type}")
        uri = session.upload_data(path, key_prefix=f"xgboost/{file_type}/{name}")
        channels[name] = TrainingInput(uri, content_type=content_type)
    estimator.fit(channels)
    return estimator


def model_members(estimator):
    S3Downloader.download(estimator.model_data, FOLDER, sagemaker_session=session)
    with tarfile.open(os.path.join(FOLDER, "model.tar.gz")) as archive:
        archive.extractall(FOLDER)
        return archive.getnames()


of_csv = train("csv", "text/csv")
members = model_members(of_csv)
os.replace(os.path.join(FOLDER, "xgboost-model"), os.path.join(FOLDER, "csv-model"))
of_libsvm = train("libsvm", "libsvm")
model_members(of_libsvm)
described = session.describe_training_job(of_csv.latest_training_job.name)
try:
    train("csv", "text/csv", depth=3)
    failure = "no failure"
except UnexpectedStatusException as error:
    failure = str(error)
report(
    members=members,
    metrics={item["MetricName"]: item["Value"] for item in described["FinalMetricDataList"]},
    failure=failure,
)
