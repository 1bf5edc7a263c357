"""SDK v2: TensorFlow with MultiWorkerMirroredStrategy: both hosts get TF_CONFIG."""

import sagemaker
from common_client import CPU_TYPE, ROLE, SOURCE, report
from sagemaker.tensorflow import TensorFlow

session = sagemaker.Session()
estimator = TensorFlow(
    entry_point="facts.py",
    source_dir=SOURCE,
    role=ROLE,
    framework_version="2.16",
    py_version="py310",
    instance_count=2,
    instance_type=CPU_TYPE,
    distribution={"multi_worker_mirrored_strategy": {"enabled": True}},
    sagemaker_session=session,
)
estimator.fit(wait=True)
report(name=estimator.latest_training_job.name)
