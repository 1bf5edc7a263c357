"""SDK v2: the generic Estimator with its own entry point, channels of four kinds, and a failing job."""

import os
import tempfile

import sagemaker
from common_client import CPU_TYPE, ROLE, SOURCE, report
from sagemaker.estimator import Estimator
from sagemaker.exceptions import UnexpectedStatusException
from sagemaker.inputs import TrainingInput
from sagemaker.s3 import S3Downloader, S3Uploader

session = sagemaker.Session()
with tempfile.TemporaryDirectory() as folder:
    for index in range(5):
        with open(os.path.join(folder, f"part-{index}.csv"), "w") as file:
            file.write(f"{index}\n")
    data = session.upload_data(folder, key_prefix="generic/data")
    slashed = f"s3://{session.default_bucket()}/generic/slashed/"
    uploaded = S3Uploader.upload(os.path.join(folder, "part-1.csv"), slashed, sagemaker_session=session)
    script = session.upload_data(os.path.join(SOURCE, "facts.py"), key_prefix="generic/script")

estimator = Estimator(
    image_uri="registry.example/team/bring-your-own:1",
    role=ROLE,
    instance_count=2,
    instance_type=CPU_TYPE,
    container_entry_point=["python3", "/opt/ml/input/data/script/facts.py"],
    container_arguments=["--flag", "a b"],
    environment={"MARKER": "set by the user"},
    hyperparameters={"x": 1, "flag": True},
    sagemaker_session=session,
)
estimator.fit(
    {
        "sharded": TrainingInput(data, distribution="ShardedByS3Key"),
        "single": TrainingInput(data + "/part-3.csv"),
        "slashed": slashed,
        "script": script,
    },
    wait=True,
)

failing = Estimator(
    image_uri="registry.example/team/bring-your-own:1",
    role=ROLE,
    instance_count=1,
    instance_type=CPU_TYPE,
    container_entry_point=["bash", "-c", "echo my own words > /opt/ml/output/failure; exit 7"],
    sagemaker_session=session,
)
try:
    failing.fit(wait=True, logs="None")
    failure = "no failure"
except UnexpectedStatusException as error:
    failure = str(error)
report(
    name=estimator.latest_training_job.name,
    failure=failure,
    uploaded=uploaded,
    listed=S3Downloader.list(slashed, sagemaker_session=session),
    read=S3Downloader.read_file(uploaded, sagemaker_session=session),
)
