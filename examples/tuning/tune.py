"""Tune train.py with the SageMaker SDK v2; nothing in this file knows where the trials will run."""

import os
import tempfile

import sagemaker
from digits import write_digits
from sagemaker.pytorch import PyTorch
from sagemaker.tuner import CategoricalParameter, ContinuousParameter, HyperparameterTuner, IntegerParameter

HERE = os.path.dirname(os.path.abspath(__file__))
CLARY = os.environ.get("CLARY_COMMAND", "clary")
NUM_TRIALS = int(os.environ.get("NUM_TRIALS", "20"))


def main():
    session = sagemaker.Session()
    with tempfile.TemporaryDirectory() as folder:
        write_digits(folder)
        training = session.upload_data(folder, key_prefix="tuning")

    estimator = PyTorch(
        entry_point="train.py",
        source_dir=os.path.join(HERE, "source"),
        framework_version="2.8.0",
        py_version="py312",
        instance_count=1,
        instance_type="ml.m5.large",
        hyperparameters={"epochs": 2},
        sagemaker_session=session,
    )
    tuner = HyperparameterTuner(
        estimator,
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
        early_stopping_type="Auto",
        random_seed=1,
        base_tuning_job_name="mnist",
    )
    tuner.fit({"training": training}, wait=True)

    name = tuner.latest_tuning_job.name
    frame = tuner.analytics().dataframe().sort_values("FinalObjectiveValue", ascending=False)
    print()
    print(frame[["TrainingJobName", "FinalObjectiveValue", "lr", "batch-size", "channels", "activation"]].head(5))
    print(f"best:  {tuner.best_training_job()}, accuracy {frame['FinalObjectiveValue'].max():.4f}")
    print(f"model: {tuner.best_estimator().model_data}")
    print("next:")
    print(f"  {CLARY} tuning {name}")
    print(f"  {CLARY} console")


if __name__ == "__main__":
    main()
