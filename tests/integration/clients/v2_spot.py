"""SDK v2: a job on managed spot capacity with checkpoints, its logs followed to the end: v2_spot.py JOB_NAME STEPS."""

import sys

import sagemaker
from common_client import CPU_TYPE, ROLE, SOURCE, report
from sagemaker.pytorch import PyTorch

name, steps = sys.argv[1], int(sys.argv[2])
session = sagemaker.Session()
estimator = PyTorch(
    entry_point="counter.py",
    source_dir=SOURCE,
    role=ROLE,
    framework_version="2.8.0",
    py_version="py312",
    instance_count=1,
    instance_type=CPU_TYPE,
    hyperparameters={"steps": steps, "pause": 0.25},
    use_spot_instances=True,
    max_run=300,
    max_wait=600,
    checkpoint_s3_uri=f"s3://{session.default_bucket()}/checkpoints/{name}",
    sagemaker_session=session,
)
estimator.fit(wait=True, job_name=name)
facts = session.describe_training_job(name)
report(
    statuses=[row["Status"] for row in facts["SecondaryStatusTransitions"]],
    training_s=facts["TrainingTimeInSeconds"],
    billable_s=facts["BillableTimeInSeconds"],
    spot=facts["EnableManagedSpotTraining"],
)
