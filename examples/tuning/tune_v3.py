"""Tune train.py with the SageMaker SDK v3; nothing in this file knows where the trials will run."""

import os
import tempfile

from digits import write_digits
from sagemaker.core.helper.session_helper import Session
from sagemaker.core.parameter import CategoricalParameter, ContinuousParameter, IntegerParameter
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode
from sagemaker.train.tuner import HyperparameterTuner

HERE = os.path.dirname(os.path.abspath(__file__))
IMAGE = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.8.0-cpu-py312"
ROLE = "arn:aws:iam::000000000000:role/ClaryExecutionRole"
NUM_TRIALS = int(os.environ.get("NUM_TRIALS", "20"))


def main():
    session = Session()
    with tempfile.TemporaryDirectory() as folder:
        write_digits(folder)
        training = session.upload_data(folder, key_prefix="tuning")

    trainer = ModelTrainer(
        training_image=IMAGE,
        source_code=SourceCode(source_dir=os.path.join(HERE, "source"), entry_script="train.py"),
        compute=Compute(instance_type="ml.m5.large", instance_count=1),
        hyperparameters={"epochs": 2},
        role=ROLE,
        base_job_name="mnist-v3",
        sagemaker_session=session,
    )
    tuner = HyperparameterTuner(
        trainer,
        objective_metric_name="accuracy",
        objective_type="Maximize",
        metric_definitions=[{"Name": "accuracy", "Regex": r"accuracy: ([0-9.]+)"}],
        hyperparameter_ranges={
            "lr": ContinuousParameter(1e-5, 1e-1, scaling_type="Logarithmic"),
            "batch-size": IntegerParameter(16, 128),
            "channels": IntegerParameter(2, 16),
            "activation": CategoricalParameter(["relu", "gelu", "tanh"]),
        },
        max_jobs=NUM_TRIALS,
        max_parallel_jobs=2,
        random_seed=1,
    )
    tuner.tune(inputs=[InputData(channel_name="training", data_source=training)], wait=True)
    frame = tuner.analytics().dataframe().sort_values("FinalObjectiveValue", ascending=False)
    print()
    print(frame[["TrainingJobName", "FinalObjectiveValue", "lr", "batch-size", "channels", "activation"]].head(5))
    print(f"best: {tuner.best_training_job()}, accuracy {frame['FinalObjectiveValue'].max():.4f}")


if __name__ == "__main__":
    main()
