"""A small launch plan for tests: one host or more, plain processes, nothing to fetch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from clary.contract.launch_plan import (
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

REGION = "us-east-1"
ACCOUNT_ID = "123456789012"


def sample_plan(folder: Path, *, python: str, num_hosts: int = 1, **changes: Any) -> LaunchPlan:
    """Return a plan whose work lies below `folder` and which runs nothing until `changes` say what.

    Args:
        folder: plays the service's home folder.
        python: path of the interpreter of the job's environment.
        num_hosts: hosts of the job, all on loopback.
        changes: fields of LaunchPlan to replace.
    """
    endpoint = Endpoint(
        url="http://127.0.0.1:1",  # nobody listens there: a test that needs an object store puts its own
        region=REGION,
        credentials=Credentials(access_key_id="FAKEKEY", secret_access_key="fake-secret"),  # noqa: S106
    )
    hosts = tuple(
        HostPlan(
            name=f"algo-{index + 1}",
            index=index,
            address="127.0.0.1",
            instance_type="ml.c5.xlarge",
            instance_group="homogeneousCluster",
            processes_per_host=1,
            resources=Resources(num_cpus=1.0, memory_bytes=None),
        )
        for index in range(num_hosts)
    )
    plan = LaunchPlan(
        job_name="sample-job",
        job_arn=f"arn:aws:sagemaker:{REGION}:{ACCOUNT_ID}:training-job/sample-job",
        attempt=1,
        region=REGION,
        account_id=ACCOUNT_ID,
        hosts=hosts,
        network=NetworkPlan(),
        isolation=Isolation.PROCESSES,
        environment=Environment(name="sample", python=python, image="sample:latest"),
        command=("/bin/true",),
        hyperparameters={},
        user_environment={},
        channels=(),
        output=Output(
            s3_output_path="s3://sample-bucket/out",
            model_uri="s3://sample-bucket/out/sample-job/output/model.tar.gz",
            output_uri="s3://sample-bucket/out/sample-job/output/output.tar.gz",
        ),
        object_store=endpoint,
        job_endpoint=endpoint,
        service_url="http://127.0.0.1:1",
        agent_token="sample-token",  # noqa: S106
        work_folder=str(folder / "jobs" / "sample-job" / "1"),
        cache_folder=str(folder / "cache"),
        stop_grace_s=2.0,
    )
    return replace(plan, **changes)
