"""SDK v2: modules.train.ModelTrainer, which brings its own drivers."""

from common_client import CPU_TYPE, ROLE, SOURCE, report
from sagemaker.modules.configs import Compute, SourceCode
from sagemaker.modules.train import ModelTrainer

trainer = ModelTrainer(
    training_image="registry.example/team/bring-your-own:1",
    role=ROLE,
    source_code=SourceCode(source_dir=SOURCE, entry_script="facts.py"),
    compute=Compute(instance_type=CPU_TYPE, instance_count=1, volume_size_in_gb=10),
    hyperparameters={"alpha": 0.1},
    base_job_name="v2-mt",
)
trainer.train(wait=True, logs=True)
job = trainer._latest_training_job
report(name=job.training_job_name, status=job.training_job_status)
