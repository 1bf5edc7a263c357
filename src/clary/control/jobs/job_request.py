"""A typed view of a CreateTrainingJob request.

Where: validation, planning and scheduling read the request through it; the request itself stays as the client sent it.
Source: CreateTrainingJob (AWS API reference); defaults as the real service fills them in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clary.contract.launch_plan import Channel, InputMode, MetricDefinition, Output
from clary.contract.settings.hyperparameters import host_share
from clary.control.file_systems import folder_below
from clary.control.instance_choice import settled
from clary.control.jobs.members.image_metrics import definitions_of
from clary.control.jobs.members.told_defaults import MAX_RUNTIME_S

DEFAULT_GROUP = "homogeneousCluster"
DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints"

# Request member -> stem of the file below /opt/ml/input/config, and the LocalPath that the service fills in.
CONFIG_DOCUMENTS = {
    "DebugHookConfig": ("debughookconfig", "/opt/ml/output/tensors"),
    "TensorBoardOutputConfig": ("tensorboardoutputconfig", "/opt/ml/output/tensorboard"),
    "CheckpointConfig": ("checkpointconfig", DEFAULT_CHECKPOINT_PATH),
    "ProfilerConfig": ("profilerconfig", "/opt/ml/output/profiler"),
}


@dataclass(frozen=True, kw_only=True)
class InstanceGroup:
    """Hosts of one type."""

    name: str
    instance_type: str
    instance_count: int


@dataclass(frozen=True)
class JobRequest:
    """Reads one parsed request.

    An absent optional member gives the service's default, or None or an empty value without a default. An absent name
    or RoleArn, or an item of a list that lacks a required member, raises KeyError.
    """

    request: Mapping[str, Any]

    @property
    def name(self) -> str:
        """TrainingJobName."""
        return str(self.request["TrainingJobName"])

    @property
    def role_arn(self) -> str:
        """RoleArn."""
        return str(self.request["RoleArn"])

    @property
    def instance_groups(self) -> tuple[InstanceGroup, ...]:
        """Groups of hosts in the order of the request; one group of the default name for plain requests."""
        config = settled(self._section("ResourceConfig"))
        if config.get("InstanceGroups"):
            return tuple(
                InstanceGroup(
                    name=group["InstanceGroupName"],
                    instance_type=group["InstanceType"],
                    instance_count=group["InstanceCount"],
                )
                for group in config["InstanceGroups"]
            )
        return (
            InstanceGroup(
                name=DEFAULT_GROUP,
                instance_type=config.get("InstanceType", ""),
                instance_count=config.get("InstanceCount", 1),
            ),
        )

    @property
    def num_hosts(self) -> int:
        """Number of hosts in all groups."""
        return sum(group.instance_count for group in self.instance_groups)

    @property
    def image(self) -> str:
        """TrainingImage, or an empty string."""
        return str(self._section("AlgorithmSpecification").get("TrainingImage", ""))

    @property
    def command(self) -> tuple[str, ...] | None:
        """ContainerEntrypoint and ContainerArguments, or None if the image's own entry point runs."""
        specification = self._section("AlgorithmSpecification")
        entrypoint: Sequence[str] = specification.get("ContainerEntrypoint") or ()
        arguments: Sequence[str] = specification.get("ContainerArguments") or ()
        return (*entrypoint, *arguments) if entrypoint else None

    @property
    def metric_definitions(self) -> tuple[MetricDefinition, ...]:
        """Metrics to look for in the log: those of the request, else those of the image."""
        definitions = definitions_of(self._section("AlgorithmSpecification"))
        return tuple(MetricDefinition(name=item["Name"], regex=item["Regex"]) for item in definitions)

    @property
    def has_own_metrics(self) -> bool:
        """Whether the request itself defines metrics."""
        return bool(self._section("AlgorithmSpecification").get("MetricDefinitions"))

    @property
    def hyperparameters(self) -> Mapping[str, str]:
        """HyperParameters, byte-exact."""
        return self.request.get("HyperParameters") or {}

    @property
    def host_share(self) -> float:
        """The fraction of each host that the job gets, from its hyperparameter; checked when a job is created."""
        return host_share(self.hyperparameters)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment of the program, as the user gave it."""
        return self.request.get("Environment") or {}

    @property
    def max_runtime_s(self) -> int:
        """MaxRuntimeInSeconds."""
        return int(self._section("StoppingCondition").get("MaxRuntimeInSeconds", MAX_RUNTIME_S))

    @property
    def max_wait_s(self) -> int | None:
        """MaxWaitTimeInSeconds."""
        value = self._section("StoppingCondition").get("MaxWaitTimeInSeconds")
        return None if value is None else int(value)

    @property
    def max_pending_s(self) -> int | None:
        """MaxPendingTimeInSeconds."""
        value = self._section("StoppingCondition").get("MaxPendingTimeInSeconds")
        return None if value is None else int(value)

    @property
    def is_spot(self) -> bool:
        """EnableManagedSpotTraining."""
        return bool(self.request.get("EnableManagedSpotTraining", False))

    @property
    def max_retries(self) -> int | None:
        """RetryStrategy.MaximumRetryAttempts; None where the request has no RetryStrategy."""
        strategy = self.request.get("RetryStrategy")
        return None if strategy is None else int(strategy["MaximumRetryAttempts"])

    @property
    def keep_alive_s(self) -> int:
        """ResourceConfig.KeepAlivePeriodInSeconds: how long hosts wait for a matching job; 0 on spot capacity."""
        return 0 if self.is_spot else int(self._section("ResourceConfig").get("KeepAlivePeriodInSeconds") or 0)

    @property
    def has_network_isolation(self) -> bool:
        """EnableNetworkIsolation."""
        return bool(self.request.get("EnableNetworkIsolation", False))

    @property
    def wants_health_checks(self) -> bool | None:
        """InfraCheckConfig.EnableInfraCheck; None if absent."""
        value = self._section("InfraCheckConfig").get("EnableInfraCheck")
        return None if value is None else bool(value)

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Input channels with defaults filled in."""
        default_mode = self._section("AlgorithmSpecification").get("TrainingInputMode", "File")
        return tuple(_channel(item, default_mode) for item in self.request.get("InputDataConfig") or ())

    @property
    def output(self) -> Output:
        """Destination of results."""
        config = self._section("OutputDataConfig")
        path = str(config.get("S3OutputPath", ""))
        is_compressed = config.get("CompressionType", "GZIP") != "NONE"
        base = f"{path.rstrip('/')}/{self.name}/output"
        return Output(
            s3_output_path=path,
            model_uri=f"{base}/model.tar.gz" if is_compressed else f"{base}/model/",
            output_uri=f"{base}/output.tar.gz" if is_compressed else f"{base}/data/",
            is_compressed=is_compressed,
        )

    @property
    def code_uri(self) -> str | None:
        """The code in S3: an archive, or a prefix that ends with a slash (SDK v3's channel `code`); None without."""
        archive = self.hyperparameters.get("sagemaker_submit_directory", "").strip('"')
        if archive.startswith("s3://"):
            return archive
        uris = {channel.name: channel.s3_uri for channel in self.channels}
        uri = uris.get("code") if "sm_drivers" in uris else None
        return uri if uri is None or uri.endswith(".tar.gz") else f"{uri.rstrip('/')}/"

    @property
    def checkpoint_local_path(self) -> str | None:
        """Folder of checkpoints if the request has a CheckpointConfig."""
        config = self.request.get("CheckpointConfig")
        return None if config is None else str(config.get("LocalPath", DEFAULT_CHECKPOINT_PATH))

    @property
    def checkpoint_s3_uri(self) -> str | None:
        """CheckpointConfig.S3Uri: the prefix that checkpoints are restored from and mirrored to."""
        config = self.request.get("CheckpointConfig")
        return None if config is None else config.get("S3Uri")

    @property
    def is_profiler_disabled(self) -> bool:
        """ProfilerConfig.DisableProfiler."""
        return bool(self._section("ProfilerConfig").get("DisableProfiler", False))

    @property
    def profiling_interval_s(self) -> float | None:
        """ProfilerConfig.ProfilingIntervalInMilliseconds, in seconds."""
        value = self._section("ProfilerConfig").get("ProfilingIntervalInMilliseconds")
        return None if value is None else int(value) / 1000

    @property
    def config_documents(self) -> dict[str, Any]:
        """Documents below /opt/ml/input/config that mirror parts of the request, by file stem."""
        documents = {}
        for member, (stem, local_path) in CONFIG_DOCUMENTS.items():
            if self.request.get(member) is not None:
                documents[stem] = {"LocalPath": local_path, **self.request[member]}
        return documents

    def _section(self, name: str) -> Mapping[str, Any]:
        return self.request.get(name) or {}


def _channel(item: Mapping[str, Any], default_mode: str) -> Channel:
    source = item.get("DataSource") or {}
    s3 = source.get("S3DataSource") or {}
    file_system = source.get("FileSystemDataSource") or {}
    shuffle = item.get("ShuffleConfig") or {}
    return Channel(
        name=item["ChannelName"],
        s3_uri=s3.get("S3Uri"),
        s3_data_type=s3.get("S3DataType", "S3Prefix"),
        s3_data_distribution=s3.get("S3DataDistributionType", "FullyReplicated"),
        file_system_id=file_system.get("FileSystemId"),
        file_system_folder=folder_below(file_system.get("DirectoryPath", ""), file_system.get("FileSystemType", "")),
        file_system_access=file_system.get("FileSystemAccessMode", "ro"),
        input_mode=InputMode(item.get("InputMode", default_mode)),
        content_type=item.get("ContentType"),
        compression=item.get("CompressionType", "None"),
        record_wrapper=item.get("RecordWrapperType", "None"),
        shuffle_seed=shuffle.get("Seed"),
        instance_groups=tuple(s3.get("InstanceGroupNames") or ()),
    )
