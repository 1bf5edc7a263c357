"""SDK v2: HuggingFace with smdistributed data parallel, whose ranks get mpirun's variables."""

import sagemaker
from common_client import GPU_TYPE, ROLE, SOURCE, report
from sagemaker.huggingface import HuggingFace

session = sagemaker.Session()
estimator = HuggingFace(
    entry_point="allreduce.py",
    source_dir=SOURCE,
    role=ROLE,
    transformers_version="4.28.1",
    pytorch_version="2.0.0",
    py_version="py310",
    instance_count=1,
    instance_type="ml.p3.16xlarge",
    distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
    sagemaker_session=session,
)
estimator.fit(wait=True, logs="None")
report(name=estimator.latest_training_job.name, gpu_type=GPU_TYPE, model_data=estimator.model_data)
