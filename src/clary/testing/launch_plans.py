"""Small, complete launch plans for tests, whose fields are set by keyword."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clary.contract.launch_plan import (
    Channel,
    Credentials,
    Endpoint,
    Environment,
    HostPlan,
    Isolation,
    LaunchPlan,
    NetworkPlan,
    Output,
    Resources,
)

JOB_NAME = "job-1"
POOL = "pool_0123456789ab"


def make_hosts(
    num_hosts: int = 1,
    *,
    instance_type: str = "ml.m5.xlarge",
    processes_per_host: int = 1,
    gpu_indices: tuple[int, ...] = (),
    isolation: Isolation = Isolation.NAMESPACES,
) -> tuple[HostPlan, ...]:
    """Return hosts algo-1 to algo-N of one group, each with an address of its own unless they share the machine.

    Args:
        num_hosts: N.
        instance_type: type of every host.
        processes_per_host: ranks of the program on each.
        gpu_indices: GPUs of the machine that every host gets.
        isolation: NAMESPACES gives each host its own address; otherwise all hosts have 127.0.0.1.
    """
    is_isolated = isolation is Isolation.NAMESPACES
    return tuple(
        HostPlan(
            name=f"algo-{index + 1}",
            index=index,
            address=f"10.0.0.{index + 1}" if is_isolated else "127.0.0.1",
            instance_type=instance_type,
            instance_group="homogeneousCluster",
            processes_per_host=processes_per_host,
            resources=Resources(num_cpus=2, memory_bytes=None, gpu_indices=gpu_indices),
        )
        for index in range(num_hosts)
    )


def make_plan(
    *,
    hosts: Sequence[HostPlan] | None = None,
    hyperparameters: Mapping[str, str] | None = None,
    channels: Sequence[Channel] = (),
    isolation: Isolation = Isolation.NAMESPACES,
    **changes: Any,
) -> LaunchPlan:
    """Return a plan of one attempt; every field of `LaunchPlan` can be set.

    Args:
        hosts: None for one host.
        hyperparameters: None for no hyperparameters.
        channels: input channels.
        isolation: isolation of the plan, and of the default host.
        changes: further fields of `LaunchPlan`, which replace this function's defaults.
    """
    key = Credentials(access_key_id="AKJOB", secret_access_key="job-secret")  # noqa: S106 - not a secret
    endpoint = Endpoint(url="http://10.0.0.254:4570", region="us-west-2", credentials=key)
    fields: dict[str, Any] = {
        "job_name": JOB_NAME,
        "job_arn": f"arn:aws:sagemaker:us-west-2:000000000000:training-job/{JOB_NAME}",
        "attempt": 1,
        "region": "us-west-2",
        "account_id": "000000000000",
        "hosts": tuple(hosts or make_hosts(isolation=isolation)),
        "network": NetworkPlan(),
        "isolation": isolation,
        "environment": Environment(name="default", python="/env/bin/python", image="pytorch-training:2.8.0-cpu-py312"),
        "command": None,
        "hyperparameters": dict(hyperparameters or {}),
        "user_environment": {},
        "channels": tuple(channels),
        "output": Output(
            s3_output_path="s3://bucket/out",
            model_uri=f"s3://bucket/out/{JOB_NAME}/output/model.tar.gz",
            output_uri=f"s3://bucket/out/{JOB_NAME}/output/output.tar.gz",
        ),
        "object_store": endpoint,
        "job_endpoint": endpoint,
        "service_url": "http://127.0.0.1:4570",
        "pool": POOL,
        "pool_token": "token-of-the-pool",
        "agent_token": "token-of-the-attempt",
        "work_folder": "/var/lib/clary/job-1",
    }
    return LaunchPlan(**{**fields, **changes})
