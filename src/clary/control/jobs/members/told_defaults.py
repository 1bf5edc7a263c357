"""Members that DescribeTrainingJob returns with AWS's default if the request left them out.

Where: `services.job_descriptions` fills them in, `docs/api.md` lists them. `jobs.job_request` reads requests with
the same defaults. A test fails for a default that botocore's model documents and that neither table here contains.
Source: CreateTrainingJob (AWS API reference); public answers of the real service, and assertions in the integration
tests of SageMaker's Python SDK.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any

from clary.control.jobs.members.image_metrics import with_metrics

MAX_RUNTIME_S = 86_400

# Structures that every description has, even if the stored request lacks them.
ALWAYS_TOLD = ("OutputDataConfig", "AlgorithmSpecification", "StoppingCondition")

TOLD: Mapping[str, Any] = {
    "AlgorithmSpecification.TrainingInputMode": "File",
    "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries": False,
    "InputDataConfig": [],
    "InputDataConfig[].CompressionType": "None",
    "InputDataConfig[].RecordWrapperType": "None",
    "InputDataConfig[].DataSource.S3DataSource.S3DataDistributionType": "FullyReplicated",
    "OutputDataConfig.KmsKeyId": "",
    "OutputDataConfig.CompressionType": "GZIP",
    "ResourceConfig.InstancePlacementConfig.EnableMultipleJobs": False,
    "StoppingCondition.MaxRuntimeInSeconds": MAX_RUNTIME_S,
    "DebugRuleConfigurations[].VolumeSizeInGB": 0,
    "ProfilerRuleConfigurations[].VolumeSizeInGB": 0,
    "EnableNetworkIsolation": False,
    "EnableInterContainerTrafficEncryption": False,
    "EnableManagedSpotTraining": False,
}

_FILLED_ON_HOSTS = (
    "returned as it was sent, as by the real service; the file below /opt/ml/input/config has the default"
)
_NO_FILES = "returned as it was sent, as by the real service; rules write no files here"
# Documented defaults that are not filled in, or filled in elsewhere, with the reason.
TOLD_OTHERWISE: Mapping[str, str] = {
    "AlgorithmSpecification.MetricDefinitions": (
        "those of the image (sagemaker-xgboost), as by the real service; any other image has none"
    ),
    "CheckpointConfig.LocalPath": _FILLED_ON_HOSTS,
    "DebugHookConfig.LocalPath": _FILLED_ON_HOSTS,
    "TensorBoardOutputConfig.LocalPath": "returned as it was sent, like the LocalPath of checkpoints and tensors",
    "DebugRuleConfigurations[].LocalPath": _NO_FILES,
    "ProfilerRuleConfigurations[].LocalPath": _NO_FILES,
    "ProfilerConfig.ProfilingIntervalInMilliseconds": (
        "shown as hosts use it: 500 unless setting metrics_interval_s says otherwise; not with DisableProfiler"
    ),
}


def with_defaults(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a request with the defaults of the members that it leaves out.

    The request is valid by the service model. Members of an absent structure get no defaults, unless the structure is
    one of ALWAYS_TOLD.
    """
    told = {name: {} for name in ALWAYS_TOLD} | dict(request)
    for path, default in TOLD.items():
        _fill(told, tuple(path.split(".")), default)
    told["AlgorithmSpecification"] = with_metrics(told["AlgorithmSpecification"])
    return told


def _fill(holder: dict[str, Any], steps: tuple[str, ...], default: Any) -> None:
    """Set a member if it is absent, in every structure to which its path leads.

    Structures along the path are copied; absent structures are not created.
    """
    step, *rest = steps
    if not rest:
        if holder.get(step) is None:
            holder[step] = copy(default)
        return
    name = step.removesuffix("[]")
    if holder.get(name) is None:
        return
    if step.endswith("[]"):
        holder[name] = [dict(item) for item in holder[name]]
        inner: Iterator[dict[str, Any]] = iter(holder[name])
    else:
        holder[name] = dict(holder[name])
        inner = iter((holder[name],))
    for structure in inner:
        _fill(structure, tuple(rest), default)
