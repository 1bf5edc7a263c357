"""Warm pools on the page of hosts: pools in use, pools being cleared, pools that wait, and their remaining time."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from own_pages import FewParts
from server_parts import START, FakeServices, document, request, running_job

from clary.contract.statuses import SecondaryStatus, TrainingJobStatus, WarmPoolStatus
from clary.control.jobs.training_job import WarmPool

KEPT = {
    "AlgorithmSpecification": {"TrainingImage": "image:1"},
    "ResourceConfig": {"InstanceCount": 2, "InstanceType": "ml.m5.large", "KeepAlivePeriodInSeconds": 600},
}


def job_of(name, pool, **changes):
    return running_job(name=name, arn=f"arn:{name}", request=KEPT, pool=f"pool_{name}", warm_pool=pool, **changes)


async def pools_of(*jobs):
    services = FakeServices(jobs)
    services.hub.active_jobs = lambda: list(jobs)
    samples = SimpleNamespace(last_values=lambda _: [])
    routes = FewParts(services, samples=samples)
    return document(await routes.handle(request("/clary/v1/hosts")))["pools"]


async def test_a_pool_in_use_has_its_keep_alive_period_and_a_waiting_pool_its_remaining_time():
    over = {"status": TrainingJobStatus.COMPLETED, "secondary_status": SecondaryStatus.COMPLETED}
    # Twelve seconds have passed since START.
    waits = WarmPool(status=WarmPoolStatus.AVAILABLE, available_at=START + timedelta(seconds=2), is_parked=True)
    found = await pools_of(
        job_of("uses", WarmPool(status=WarmPoolStatus.IN_USE)),
        job_of("waits", waits, **over),
        job_of("clears", replace(waits, is_parked=False), **over),
    )
    assert [(pool["job"], pool["status"], pool["is_ready"], pool["left_s"]) for pool in found] == [
        ("uses", "InUse", False, None),
        ("waits", "Available", True, 590.0),
        ("clears", "Available", False, 590.0),
    ]
    assert {(pool["num_hosts"], pool["instance_type"], pool["keep_alive_s"]) for pool in found} == {
        (2, "ml.m5.large", 600)
    }


@pytest.mark.parametrize("status", [WarmPoolStatus.TERMINATED, WarmPoolStatus.REUSED])
async def test_ended_pools_are_not_shown(status):
    assert await pools_of(job_of("gone", WarmPool(status=status)), running_job()) == []
