"""The launch plan: all data that agents need to run one attempt of one job.

Where: the service builds the plan (`control.reconcile.planning`), an engine starts one agent per host from it, and each
agent fetches it as its assignment; `clary plan JOB` prints it without its secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clary.base.mapped_users import MappedUsers
from clary.base.string_enum import StrEnum
from clary.contract.health import HealthAction
from clary.contract.job_rules import MirrorPlan, RulePlan
from clary.contract.settings.hyperparameters import NamedProgram, named_program, told_to_program


class Isolation(StrEnum):
    """Kind of isolation of a host from this machine and from other hosts."""

    NAMESPACES = "namespaces"  # own mounts, network, processes, hostname; cgroup if available
    PROCESSES = "processes"  # plain processes with remapped paths: nothing is isolated


class InputMode(StrEnum):
    """Form in which a channel reaches the program."""

    FILE = "File"
    FAST_FILE = "FastFile"
    PIPE = "Pipe"


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """An access key pair; `repr` hides the secret."""

    access_key_id: str
    secret_access_key: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An AWS-compatible endpoint and its key pair."""

    url: str
    region: str
    credentials: Credentials
    aliases_keys: bool = False  # the store would take `a//b` for `a/b`: [Note: keys that the store would alias]


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One input channel of the job, as the request gave it, with the service's defaults filled in."""

    name: str
    s3_uri: str | None  # s3://bucket/prefix, for S3 sources
    s3_data_type: str = "S3Prefix"  # S3Prefix, ManifestFile, AugmentedManifestFile
    s3_data_distribution: str = "FullyReplicated"  # FullyReplicated, ShardedByS3Key
    file_system_id: str | None = None  # for file system sources: FileSystemId of the request
    file_system_path: str | None = None  # folder of this machine that the service's settings assign to the id
    file_system_folder: str = ""  # path below that folder: DirectoryPath; untrusted users may have put links there
    file_system_access: str = "ro"  # ro, rw
    input_mode: InputMode = InputMode.FILE
    content_type: str | None = None
    compression: str = "None"  # None, Gzip
    record_wrapper: str = "None"  # None, RecordIO
    shuffle_seed: int | None = None
    instance_groups: tuple[str, ...] = ()  # empty: every group gets the channel


@dataclass(frozen=True, kw_only=True)
class Output:
    """The destinations of results."""

    s3_output_path: str  # as the request gave it
    model_uri: str  # s3://.../<job>/output/model.tar.gz, or .../output/model/ without compression
    output_uri: str  # s3://.../<job>/output/output.tar.gz, or .../output/data/ without compression
    is_compressed: bool = True


@dataclass(frozen=True, kw_only=True)
class Link:
    """Shape of one host's network link; a rate of None: as fast as the machine allows."""

    rate_mbit_s: float | None = None
    delay_ms: float = 0.0  # in one direction
    loss_percent: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Share of this machine that one host may use."""

    num_cpus: float
    memory_bytes: int | None  # None: not limited
    memory_advice: str = ""  # advice for this machine if the memory is too small
    gpu_indices: tuple[int, ...] = ()  # GPUs of this machine that belong to the host
    link: Link = field(default_factory=Link)


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """One host of the job."""

    name: str  # algo-1
    index: int  # 0 for algo-1; not the node rank: launchers sort by name, algo-10 before algo-2
    address: str  # address on the job's network; 127.0.0.1 if all hosts share one machine's network
    instance_type: str
    instance_group: str
    processes_per_host: int
    resources: Resources
    disk_bytes: int | None = None  # size of a file system for the files that the host writes; None: the machine's disk


@dataclass(frozen=True, kw_only=True)
class NetworkPlan:
    """The job's own network."""

    interface: str = "eth0"
    prefix_length: int = 24
    anchor_pid: int | None = None  # process that holds the network namespaces; None without isolation
    namespace_paths: Mapping[str, str] = field(default_factory=dict)  # host name -> file for setns(CLONE_NEWNET)
    user_namespace_path: str | None = None  # for setns(CLONE_NEWUSER) before CLONE_NEWNET; None if root made them
    relayed_names: Mapping[str, str] = field(default_factory=dict)  # name -> address of names other than hosts
    mapped_users: MappedUsers | None = None  # of programs if root made the network; None if a user made it
    master_port: int = 7777  # 7777 if hosts have their own network, a free port if they share one

    @property
    def jax_port(self) -> int:
        """The port of jax's coordinator on the first host, other than the master port, which torch's store may use."""
        return self.master_port + 1


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The Python environment that stands for the job's image."""

    name: str
    python: str  # path of the interpreter
    image: str  # image as in the request
    variables: Mapping[str, str] = field(default_factory=dict)  # make the environment more like the image


@dataclass(frozen=True, kw_only=True)
class MetricDefinition:
    """A metric that agents search for in log lines: group 1 of `regex` is its value."""

    name: str
    regex: str


class AnsiCodes(StrEnum):
    """Treatment of terminal escape sequences, such as colours, in the log."""

    KEEP = "keep"
    STRIP = "strip"


@dataclass(frozen=True, kw_only=True)
class LogRules:
    """Rules for the part of the program's output that enters the log of a host."""

    ansi: AnsiCodes = AnsiCodes.KEEP
    max_lines_per_s: int = 0  # long-term rate, for all processes of the host together; 0: no bound
    max_bytes_per_s: int = 0  # long-term rate of the lines' text in UTF-8; 0: no bound
    spool_max_bytes: int = 0  # bytes of lines on the host's disk that the service has not stored yet; 0: no bound


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """One attempt of one job, complete."""

    job_name: str
    job_arn: str
    attempt: int
    region: str
    account_id: str
    hosts: tuple[HostPlan, ...]
    network: NetworkPlan
    isolation: Isolation
    environment: Environment
    command: tuple[str, ...] | None  # ContainerEntrypoint + ContainerArguments; None: the job names a `program`
    hyperparameters: Mapping[str, str]
    user_environment: Mapping[str, str]
    channels: tuple[Channel, ...]
    output: Output
    object_store: Endpoint  # for the agents' requests to S3: the store, or this service (`planning`)
    job_endpoint: Endpoint  # the program's endpoint for AWS: this service, with the job's own key
    service_url: str  # address for the agents' reports
    agent_token: str = field(repr=False)  # bearer token of this attempt's agents
    work_folder: str = ""  # folder of this attempt on the host's machine
    pool: str = ""  # the pool whose hosts run the attempt
    pool_token: str = field(default="", repr=False)  # bearer token of the pool's agents
    shares_hosts: bool = False  # whether the pool's hosts may serve other attempts before or after this one
    has_standby: bool = True  # whether an interpreter waits on the pool's hosts between jobs
    series: str = ""  # tuning job whose trials follow each other on the hosts: a similar next job is certain
    pool_folder: str = ""  # folder of the pool's network, its agents, and data that its hosts keep from job to job
    cache_folder: str = ""  # environments, requirements and objects kept between jobs on the host's machine
    channel_cache_bytes: int = 0  # bound on the cached objects of channels and code; 0: no object is kept
    config_documents: Mapping[str, Any] = field(default_factory=dict)  # debughookconfig, profilerconfig, ...
    rules: tuple[RulePlan, ...] = ()  # rules over saved tensors; the first host runs them beside the program
    mirrors: tuple[MirrorPlan, ...] = ()  # folders that are copied to the object store while the program runs
    checkpoint_local_path: str | None = None  # the program's folder of checkpoints, if the request has CheckpointConfig
    checkpoint_s3_uri: str | None = None  # prefix from which the folder is restored, and to which it is mirrored
    checkpoint_interval_s: float = 5.0  # polling interval of the checkpoint folder
    checkpoint_flush_s: float = 600.0  # longest time for the last set after the program's normal end
    metric_definitions: tuple[MetricDefinition, ...] = ()
    log_rules: LogRules = field(default_factory=LogRules)
    proxy_url: str | None = None  # the only route to the internet of hosts with namespaces, for HTTPS; None: no proxy
    hang_timeout_s: float = 0.0  # longest standstill of a program; 0: no limit
    metrics_interval_s: float = 0.0  # interval of a host's measurements; 0: no measurements
    restart_hung: bool = False  # whether to end a program that stands still, and not only report it
    health_checks: bool = False  # whether hosts check themselves and their links
    network_checked_for: str = ""  # previous job on these hosts, if their links were ok; links are not checked again
    health_action: HealthAction = HealthAction.WARN  # consequence of a sick host before the program starts
    stop_grace_s: float = 120.0  # from SIGTERM to SIGKILL
    upload_timeout_s: float = 3600.0  # time for results to reach the object store, as the service counts it
    notice_grace_s: float = 0.0  # from the engine's SIGTERM to its SIGKILL; 0: the engine kills no agent it signals
    engine_signals_all: bool = False  # whether the engine's SIGTERM goes to every process of a host, also to programs
    network_isolation: bool = False  # EnableNetworkIsolation
    shows_whole_machine: bool = False  # whether programs see every folder of the machine
    visible_folders: tuple[str, ...] = ()  # further folders of the machine that programs see
    prepare_order: int = 0  # number of the order to prepare, which agents get with the plan: they wait for later ones
    warnings: tuple[str, ...] = ()  # shown in the first log lines of algo-1 and by `clary describe`

    @property
    def program(self) -> NamedProgram | None:
        """The entry point that the job or its image names; None for a command and for a job without a name."""
        if self.command is not None:
            return None
        return named_program(self.hyperparameters, {**self.environment.variables, **self.user_environment})

    @property
    def told_hyperparameters(self) -> Mapping[str, str]:
        """The hyperparameters that arguments and SM_* variables tell the program."""
        return told_to_program(self.hyperparameters, job_name=self.job_name, image=self.environment.image)

    def host(self, name: str) -> HostPlan:
        """Return the host called `name`. Raises: KeyError if the job has no such host."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise KeyError(name)


SECRET_PLACEHOLDER = "(hidden)"  # noqa: S105 - what is printed in place of a secret


def without_secrets(plain_plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan in plain form with every secret replaced by `(hidden)`."""
    hidden = dict(plain_plan)
    hidden["agent_token"] = SECRET_PLACEHOLDER
    if hidden.get("pool_token"):
        hidden["pool_token"] = SECRET_PLACEHOLDER
    for name in ("object_store", "job_endpoint"):
        endpoint = dict(hidden[name])
        endpoint["credentials"] = {**endpoint["credentials"], "secret_access_key": SECRET_PLACEHOLDER}
        hidden[name] = endpoint
    return hidden
