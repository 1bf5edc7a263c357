"""Builds the launch plan of a job. Pure.

Where: the reconciler plans when a job is placed; the engine completes the network before agents start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clary.contract.agent_protocol import PREPARE_NUMBER
from clary.contract.health import HealthAction
from clary.contract.launch_plan import (
    AnsiCodes,
    Endpoint,
    Environment,
    HostPlan,
    Isolation,
    LaunchPlan,
    LogRules,
    NetworkPlan,
    Resources,
)
from clary.contract.rehearsals import disk_bytes
from clary.contract.settings.distribution import read_distribution
from clary.control.egress.public_names import is_public_name
from clary.control.file_systems import located
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.rules import debug_request
from clary.control.jobs.training_job import TrainingJob
from clary.control.scheduling.placement import HostMapping
from clary.control.settings import Settings
from clary.control.state_folder import RootSecrets, StateFolder

LEAST_INTERVAL_S = 0.1  # interval between rows of a host's measurements; also the shortest interval of ProfilerConfig
UNPROFILED_INTERVAL_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Site:
    """The facts that all plans of this service have in common."""

    settings: Settings
    folder: StateFolder
    secrets: RootSecrets
    object_store: Endpoint
    service_url: str
    proxy_url: str | None
    isolation: Isolation
    is_remote: bool = False  # whether hosts are other machines, which get no key of the object store
    signals_all: bool = False  # whether a scheduler's SIGTERM reaches every process of a host


def build_plan(
    job: TrainingJob,
    site: Site,
    *,
    mapping: HostMapping,
    resources: Mapping[str, Resources],
    environment: Environment,
    pool: str,
    shares_hosts: bool,
    network_checked_for: str = "",
    notice_grace_s: float = 0.0,
) -> LaunchPlan:
    """Return the plan of the job's next attempt, without addresses: the engine adds them.

    Args:
        job: the record; the plan is for attempt `job.attempt` + 1.
        site: facts of the service.
        mapping: hosts of the job on this machine.
        resources: host name -> its resources, GPUs included.
        environment: Python environment that replaces the image.
        pool: pool of these hosts.
        shares_hosts: whether the hosts may have served another attempt, or may serve one later.
        network_checked_for: job whose check found the links of these hosts healthy; empty without a check.
        notice_grace_s: seconds from the engine's SIGTERM to an agent until the agent is killed; 0 if the engine kills
            no agent that it signals.
    Raises: WireError: a file system of the request is not in the settings any more.
    """
    request = JobRequest(job.request)
    settings = site.settings
    attempt = job.attempt + 1
    # A deleted job's name may be used again: its keys must not be valid for the new job.
    attempt_id = f"{job.name}:{job.created_at.isoformat()}:{attempt}"
    wants_checks = request.wants_health_checks
    job_endpoint = Endpoint(
        url=site.service_url,
        region=settings.region,
        credentials=site.secrets.job_credentials(attempt_id),
    )
    # A distribution in the request decides the number of processes per host.
    requested = read_distribution(request.hyperparameters).processes_per_host
    hosts = tuple(
        HostPlan(
            name=host.name,
            index=host.index,
            address="",
            instance_type=host.instance_type,
            instance_group=host.instance_group,
            processes_per_host=requested or host.processes_per_host,
            resources=resources[host.name],
            disk_bytes=disk_bytes(job.request, host.name),
        )
        for host in mapping.hosts
    )
    return LaunchPlan(
        job_name=job.name,
        job_arn=job.arn,
        attempt=attempt,
        region=settings.region,
        account_id=settings.account_id,
        hosts=hosts,
        network=NetworkPlan(),
        isolation=site.isolation,
        environment=environment,
        command=request.command,
        hyperparameters=dict(request.hyperparameters),
        user_environment=dict(request.environment),
        channels=tuple(located(channel, settings.file_systems) for channel in request.channels),
        output=request.output,
        # An attempt's key expires with the attempt, so an unreachable host can store nothing afterwards. The store
        # itself does not have public buckets.
        object_store=job_endpoint if site.is_remote or _reads_public(request, settings) else site.object_store,
        job_endpoint=job_endpoint,
        service_url=site.service_url,
        agent_token=site.secrets.agent_token(attempt_id),
        work_folder=str(site.folder.jobs / job.name / str(attempt)),
        pool=pool,
        pool_token=site.secrets.pool_token(pool),
        shares_hosts=shares_hosts,
        pool_folder=str(site.folder.jobs / pool / "1"),
        has_standby=settings.standby_hosts,
        series=job.tuning_job_arn,
        cache_folder=str(site.folder.cache),
        channel_cache_bytes=settings.channel_cache_bytes,
        config_documents=request.config_documents,
        rules=debug_request.rule_plans(job.request),
        mirrors=debug_request.mirror_plans(job.request, request.config_documents, job_name=job.name),
        checkpoint_local_path=request.checkpoint_local_path,
        checkpoint_s3_uri=request.checkpoint_s3_uri,
        checkpoint_interval_s=settings.checkpoint_interval_s,
        metric_definitions=request.metric_definitions,
        log_rules=LogRules(
            ansi=AnsiCodes(settings.log_ansi),
            max_lines_per_s=settings.log_max_lines_per_s,
            max_bytes_per_s=settings.log_max_bytes_per_s,
            spool_max_bytes=settings.log_spool_max_bytes,
        ),
        proxy_url=site.proxy_url,
        hang_timeout_s=settings.hang_timeout_s,
        metrics_interval_s=metrics_interval_s(request, settings),
        restart_hung=settings.restart_hung,
        health_checks=settings.health_checks if wants_checks is None else wants_checks,
        network_checked_for=network_checked_for,
        health_action=HealthAction(settings.health_action),
        stop_grace_s=settings.stop_grace_s,
        upload_timeout_s=settings.upload_timeout_s,
        notice_grace_s=notice_grace_s,
        engine_signals_all=site.signals_all,
        network_isolation=request.has_network_isolation,
        shows_whole_machine=settings.machine_view == "whole",
        visible_folders=tuple(folder for folder in settings.visible_folders.split(":") if folder),
        prepare_order=PREPARE_NUMBER,
        warnings=(*job.warnings, *job.emulation),
    )


def _reads_public(request: JobRequest, settings: Settings) -> bool:
    """Whether a channel, or the code, may lie in a public bucket of AWS, which agents read through the service."""
    uris = [channel.s3_uri for channel in request.channels if channel.s3_uri is not None]
    uris += [] if request.code_uri is None else [request.code_uri]
    return settings.internet and any(
        is_public_name(uri.removeprefix("s3://").partition("/")[0], settings.public_buckets) for uri in uris
    )


def metrics_interval_s(request: JobRequest, settings: Settings) -> float:
    """Return the seconds between measurements of a job's hosts; 0 for never.

    The job's own interval overrides the settings'. DisableProfiler makes measurements rare, but does not end them:
    instance metrics are no part of the profiler.
    """
    if settings.metrics_interval_s == 0:
        return 0.0
    if request.is_profiler_disabled:
        return max(UNPROFILED_INTERVAL_S, settings.metrics_interval_s)
    interval_s = request.profiling_interval_s
    return max(LEAST_INTERVAL_S, settings.metrics_interval_s if interval_s is None else interval_s)
