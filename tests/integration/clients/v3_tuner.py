"""SDK v3: HyperparameterTuner over a ModelTrainer."""

import time

from common_client import CPU_TYPE, ROLE, SOURCE, report
from sagemaker.core.parameter import CategoricalParameter, ContinuousParameter, IntegerParameter
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode
from sagemaker.train.tuner import HyperparameterTuner

trainer = ModelTrainer(
    training_image="763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.8.0-cpu-py312",
    role=ROLE,
    source_code=SourceCode(source_dir=SOURCE, entry_script="tuned.py"),
    compute=Compute(instance_type=CPU_TYPE, instance_count=1),
    hyperparameters={"epochs": 2},
    base_job_name="v3-tuned",
)
tuner = HyperparameterTuner(
    trainer,
    objective_metric_name="validation:loss",
    objective_type="Minimize",
    metric_definitions=[{"Name": "validation:loss", "Regex": "validation loss: ([0-9.e-]+)"}],
    hyperparameter_ranges={
        "lr": ContinuousParameter(0.001, 0.1, scaling_type="Logarithmic"),
        "layers": IntegerParameter(1, 5),
        "opt": CategoricalParameter(["adam", "sgd"]),
    },
    max_jobs=4,
    max_parallel_jobs=2,
)
tuner.tune(wait=True, job_name=f"v3-{time.time_ns() % 10**9}")
frame = tuner.analytics().dataframe()
report(
    name=tuner.latest_tuning_job.hyper_parameter_tuning_job_name,
    best=tuner.best_training_job(),
    rows=frame.sort_values("TrainingJobName").to_dict("records"),
)
