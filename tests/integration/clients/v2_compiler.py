"""SDK v2: HuggingFace with compiler_config, as in its documentation, with debug mode on."""

import io
import json
import tarfile
from urllib.parse import urlsplit

import boto3
import sagemaker
from common_client import ROLE, SOURCE, report
from sagemaker.huggingface import HuggingFace, TrainingCompilerConfig

session = sagemaker.Session()
estimator = HuggingFace(
    entry_point="bytes_model.py",
    source_dir=SOURCE,
    role=ROLE,
    transformers_version="4.21.1",
    pytorch_version="1.11.0",
    py_version="py38",
    instance_count=1,
    instance_type="ml.p3.2xlarge",
    hyperparameters={"steps": 20},
    compiler_config=TrainingCompilerConfig(debug=True),
    environment={"GPU_NUM_DEVICES": "1"},
    sagemaker_session=session,
)
estimator.fit(wait=True, logs="None")
name = estimator.latest_training_job.name
request = session.describe_training_job(name)


def members(uri):
    """Return name -> bytes of an archive in S3."""
    place = urlsplit(uri)
    body = boto3.client("s3").get_object(Bucket=place.netloc, Key=place.path[1:])["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        return {item.name: archive.extractfile(item).read() for item in archive if item.isfile()}


output = request["ModelArtifacts"]["S3ModelArtifacts"].replace("model.tar.gz", "output.tar.gz")
report(
    name=name,
    hyperparameters=request["HyperParameters"],
    facts=json.loads(members(estimator.model_data)["facts.json"]),
    debug={path: body.decode() for path, body in members(output).items() if "compiler" in path},
)
