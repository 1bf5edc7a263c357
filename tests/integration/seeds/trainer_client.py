"""Client that starts the listings' jobs through ModelTrainer of SDK v3, and writes their outcomes to a file.

python trainer_client.py FOLDER TOLD.json: FOLDER has the programs. The client first tries to import the listings'
estimators, which v3 lacks.
"""

import importlib
import json
import sys
import time

import boto3
from sagemaker.core.shapes import CheckpointConfig, StoppingCondition
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode
from sagemaker.train.distributed import MPI, Torchrun

ROLE = "arn:aws:iam::000000000000:role/ClaryExecutionRole"
GROUP = "/aws/sagemaker/TrainingJobs"
WAIT_S = 300
ESTIMATORS = ("sagemaker.pytorch", "sagemaker.estimator", "sagemaker.horovod", "sagemaker.debugger")
P4D = "ml.p4d.24xlarge"
# Two processes instead of the listings' eight; the SDK's own driver starts the requested number.
FORMS = {
    "smddp": {"program": "smddp_program.py", "distributed": Torchrun(process_count_per_node=2)},
    "mpi": {"program": "mpi_program.py", "distributed": MPI(process_count_per_node=2)},
    "amp": {"program": "amp_program.py", "hyperparameters": {"amp": True}},
    "spot": {
        "program": "checkpoint_program.py",
        "compute": Compute(instance_type=P4D, instance_count=1, enable_managed_spot_training=True),
        "stopping_condition": StoppingCondition(max_runtime_in_seconds=1800, max_wait_time_in_seconds=3600),
        "checkpoint_config": CheckpointConfig(
            s3_uri="s3://your-bucket/checkpoints-of-v3/", local_path="/opt/ml/checkpoints"
        ),
    },
    "warm_pool": {
        "program": "checkpoint_program.py",
        "compute": Compute(instance_type=P4D, instance_count=1, keep_alive_period_in_seconds=3600),
    },
}


def start(name, folder, form):
    """Start the job of a form; return its name."""
    options = {"compute": Compute(instance_type=P4D, instance_count=1), **form}
    program = options.pop("program")
    trainer = ModelTrainer(
        training_image="registry.example/team/bring-your-own:1",
        role=ROLE,
        base_job_name=f"seed-v3-{name.replace('_', '-')}",
        source_code=SourceCode(source_dir=folder, entry_script=program),
        environment={"CLARY_CUDA_ON_CPU": "1", "OMP_NUM_THREADS": "1", "SEED_JOINS_ITSELF": "1"},
        **options,
    )
    trainer.train(wait=False)
    return trainer._latest_training_job.training_job_name


def described(name):
    """Wait until a job has ended; return its status and its log."""
    sagemaker, logs = boto3.client("sagemaker"), boto3.client("logs")
    deadline = time.monotonic() + WAIT_S
    while (job := sagemaker.describe_training_job(TrainingJobName=name))["TrainingJobStatus"] not in (
        "Completed",
        "Failed",
        "Stopped",
    ):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} did not end in {WAIT_S} s: {job['SecondaryStatusTransitions'][-1]}")
        time.sleep(0.5)
    lines = []
    for stream in logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")["logStreams"]:
        page = logs.get_log_events(logGroupName=GROUP, logStreamName=stream["logStreamName"], startFromHead=True)
        lines += [event["message"] for event in page["events"]]
    job = json.loads(json.dumps(job, default=str))
    return {"status": job["TrainingJobStatus"], "reason": job.get("FailureReason", ""), "job": job, "log": lines}


def main(folder, told_file):
    told = {"missing": []}
    for module in ESTIMATORS:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            told["missing"].append(module)
    jobs = {name: start(name, folder, form) for name, form in FORMS.items()}
    for name, job in jobs.items():
        told[name] = described(job)
        if name == "warm_pool":
            config = {"KeepAlivePeriodInSeconds": 0}  # frees the host for other jobs
            boto3.client("sagemaker").update_training_job(TrainingJobName=job, ResourceConfig=config)
    with open(told_file, "w") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
