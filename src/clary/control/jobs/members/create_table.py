"""Treatment of each member of CreateTrainingJob.

Where: `judging` applies the rules, `docs/api.md` is generated from the table. A test fails for a member of a newer
service model without a row here; add a row: honoured, accepted with a warning, or refused. Rules on several members
together (InstanceGroups together with InstanceType, MaxWaitTimeInSeconds without spot capacity or retries) are in
`jobs.validation`.
Source: CreateTrainingJob (AWS API reference).
"""

from __future__ import annotations

from clary.control.jobs.members.data_members import CHANNELS
from clary.control.jobs.members.debug_members import DEBUGGER, PROFILER, REMOTE_DEBUG
from clary.control.jobs.members.encryption import encryption
from clary.control.jobs.members.member import (
    Use,
    honoured,
    is_set,
    not_here,
    refused,
    warned,
    without_effect,
)
from clary.control.jobs.members.resource_members import RESOURCES

ACCOUNT_PART = 4  # of arn:aws:iam::123456789012:role/R
ENCRYPTION_OF_TRAFFIC = "hosts of a job talk over {place.network}, in the clear"


def _is_foreign_account(use: Use) -> bool:
    parts = str(use.value).split(":")
    return len(parts) > ACCOUNT_PART and parts[ACCOUNT_PART] != use.site.account_id


def _names_a_registry(use: Use) -> bool:
    mode, credentials = use.value.get("TrainingRepositoryAccessMode"), use.value.get("TrainingRepositoryAuthConfig")
    return mode == "Vpc" or bool(credentials)


CREATE_TRAINING_JOB = (
    honoured("TrainingJobName", "name of the job; unique"),
    honoured("HyperParameters", "hyperparameters.json, SM_HPS and arguments of the program, byte for byte"),
    honoured(
        "AlgorithmSpecification.TrainingImage",
        "names a Python environment of this machine: setting images; of SageMaker's built-in algorithms XGBoost runs "
        "without a script (docs/xgboost.md), the others are refused by name",
    ),
    not_here(
        "AlgorithmSpecification.AlgorithmName",
        "AlgorithmName is not supported: marketplace algorithms do not exist outside AWS. Use TrainingImage.",
    ),
    honoured("AlgorithmSpecification.TrainingInputMode", "input mode of the channels that set none themselves"),
    honoured("AlgorithmSpecification.MetricDefinitions[].Name", "name of the metric"),
    honoured("AlgorithmSpecification.MetricDefinitions[].Regex", "looked for in every line of the log; must compile"),
    honoured("AlgorithmSpecification.EnableSageMakerMetricsTimeSeries", "series of all metrics are kept either way"),
    honoured("AlgorithmSpecification.ContainerEntrypoint", "the program that runs, instead of the image's own"),
    honoured("AlgorithmSpecification.ContainerArguments", "its arguments"),
    without_effect(
        "AlgorithmSpecification.TrainingImageConfig",
        "TrainingImageConfig has no effect: no image is pulled from a registry, an environment of this machine runs",
        when="TrainingRepositoryAccessMode Vpc, or credentials of a registry",
        holds=_names_a_registry,
    ),
    honoured(
        "RoleArn",
        "returned by DescribeTrainingJob",
        warned(
            "RoleArn {value} has no effect: roles are not assumed here; what the job's programs may do is said by the "
            "setting job_api_access",
            when="a role of another account",
            holds=_is_foreign_account,
        ),
    ),
    *CHANNELS,
    encryption("OutputDataConfig.KmsKeyId", "results are written to the object store as they are"),
    honoured(
        "OutputDataConfig.S3OutputPath",
        (
            "results are stored below it; a missing bucket is created in the embedded object store, and "
            "refused in any other store"
        ),
    ),
    honoured("OutputDataConfig.CompressionType", "GZIP: one archive; NONE: files as they are"),
    *RESOURCES,
    without_effect(
        "VpcConfig", "VpcConfig is accepted and has no effect: there are no subnets and security groups here"
    ),
    honoured("StoppingCondition.MaxRuntimeInSeconds", "training is stopped then; setting max_runtime_s bounds it"),
    honoured(
        "StoppingCondition.MaxWaitTimeInSeconds",
        "with spot capacity or a RetryStrategy: the job is stopped then, all waits and attempts counted together",
    ),
    honoured("StoppingCondition.MaxPendingTimeInSeconds", "a job that still waits then is stopped"),
    honoured("Tags[].Key", "key of a tag"),
    honoured("Tags[].Value", "value of a tag"),
    honoured(
        "EnableNetworkIsolation",
        "programs reach nothing outside of the job",
        refused(
            "EnableNetworkIsolation can not be kept here: hosts share the network of {place.shared}, and nothing keeps "
            "programs from calling others. Leave it out, or use a service with engine local whose hosts have networks "
            "of their own; clary doctor says why these have none.",
            when="hosts without a network of their own: engines slurm and boxes, isolation processes",
            holds=lambda use: is_set(use) and not use.site.has_host_networks,
        ),
    ),
    encryption("EnableInterContainerTrafficEncryption", ENCRYPTION_OF_TRAFFIC),
    honoured("EnableManagedSpotTraining", "hosts can be taken back, and the job goes on later"),
    honoured("CheckpointConfig.S3Uri", "checkpoints are restored from it and mirrored to it"),
    honoured("CheckpointConfig.LocalPath", "folder of checkpoints on hosts"),
    *DEBUGGER,
    honoured("ExperimentConfig.ExperimentName", "must exist; the job's trial component belongs to it"),
    honoured("ExperimentConfig.TrialName", "must exist; the job's trial component belongs to it"),
    honoured("ExperimentConfig.TrialComponentDisplayName", "name that the trial component shows"),
    honoured("ExperimentConfig.RunName", "must exist; returned by DescribeTrainingJob"),
    *PROFILER,
    honoured("Environment", "environment of the program"),
    honoured(
        "RetryStrategy.MaximumRetryAttempts",
        (
            "number of times that the job is tried again after a fault that is not its own; no retry if "
            "the machine lacks uv or the interpreter, since a retry cannot supply them"
        ),
    ),
    *REMOTE_DEBUG,
    honoured(
        "InfraCheckConfig.EnableInfraCheck",
        "whether hosts and links are checked, whatever the setting health_checks says",
    ),
    without_effect(
        "SessionChainingConfig.EnableSessionTagChaining",
        "SessionChainingConfig has no effect: no role is assumed here, so that there are no session tags to pass on",
    ),
    not_here(
        "ServerlessJobConfig",
        "ServerlessJobConfig is not supported: serverless customisation jobs run on Amazon's own models.",
    ),
    not_here(
        "MlflowConfig",
        "MlflowConfig is not supported: managed MLflow servers are an Amazon service; set MLFLOW_TRACKING_URI in "
        "Environment instead.",
    ),
    not_here(
        "ModelPackageConfig",
        "ModelPackageConfig is not supported: the model registry is not part of training; register model.tar.gz "
        "yourself.",
    ),
)
