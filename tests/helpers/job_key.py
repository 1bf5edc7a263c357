"""A job and the permissions of its access key, for tests of the access rules."""

from datetime import UTC, datetime

from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs.job_grants import grants_of
from clary.control.jobs.training_job import TrainingJob

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ARN = "arn:aws:sagemaker:us-west-2:000000000000"
REQUEST = {
    "TrainingJobName": "job-1",
    "RoleArn": "arn:aws:iam::000000000000:role/R",
    "AlgorithmSpecification": {
        "TrainingImage": "team/x:1",
        "ContainerEntrypoint": ["python", "-m", "run"],
        "ContainerArguments": ["--base", "s3://clary/remote/job-1", "--flag"],
    },
    "InputDataConfig": [
        {"ChannelName": "train", "DataSource": {"S3DataSource": {"S3Uri": "s3://data/train/part-"}}},
        {
            "ChannelName": "listed",
            "DataSource": {"S3DataSource": {"S3Uri": "s3://data/list.manifest", "S3DataType": "ManifestFile"}},
        },
    ],
    "OutputDataConfig": {"S3OutputPath": "s3://clary/out/"},
    "CheckpointConfig": {"S3Uri": "s3://clary/checkpoints/mine"},
    "DebugHookConfig": {"S3OutputPath": "s3://clary/tensors"},
    "DebugRuleConfigurations": [
        {"RuleConfigurationName": "r", "RuleParameters": {"other_trial_0": "s3://clary/tensors/old/debug-output"}}
    ],
    "HyperParameters": {
        "sagemaker_submit_directory": '"s3://clary/job-1/source/sourcedir.tar.gz"',
        "sagemaker_s3_output": '"s3://clary/"',
        "vocabulary": '"s3://shared/vocabulary.txt"',
        "nested": '{"a": ["s3://shared/a", "s3://shared/b/"]}',
        "glob": "s3://shared/images/*.jpg",
        "epochs": "3",
    },
    "Environment": {"CACHE": "s3://shared/cache/", "TEXT": "from s3://shared/from to s3://shared/to."},
    "ExperimentConfig": {"ExperimentName": "Digits", "RunName": "digits-run"},
}


def job_of(request=REQUEST):
    return TrainingJob(
        name=request["TrainingJobName"],
        arn=f"{ARN}:training-job/{request['TrainingJobName']}",
        request=request,
        status=TrainingJobStatus.IN_PROGRESS,
        secondary_status=SecondaryStatus.TRAINING,
        transitions=(),
        created_at=NOW,
        modified_at=NOW,
    )


GRANTS = grants_of(job_of(), default_bucket="clary")
