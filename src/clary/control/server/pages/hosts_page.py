"""Page of the existing hosts: of running jobs, and of warm pools that wait for a job.

Where: the answer to /clary/v1/hosts.

    {"hosts": [{"name", "job", "state", "instance_type", "since", "health", "why", "pool", "attempt",
                "cpu_percent", "memory_bytes", "memory_limit_bytes", "memory_percent"}],
     "machine": as in `machine_page`; null if it is not measured
     "pools": [{"name", "job", "status", "is_ready", "num_hosts", "instance_type", "since", "keep_alive_s", "left_s"}]}

`state` is the phase of a host, or `warm` for a waiting host; `health` is `sick`, `checking` until the last check has
ended, `well` or `unchecked`; values that were not measured are null. `job` of a pool is
the job that runs on it (`InUse`), or the last job that ran on it (`Available`); `is_ready` tells whether a matching job
can take the pool now; `left_s` is the rest of its wait in seconds, null while a job runs on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from clary.base.plain import to_plain
from clary.contract.health import FindingState
from clary.contract.statuses import WarmPoolStatus
from clary.control.jobs.health import diagnose, findings_of
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import HostRecord, TrainingJob
from clary.control.jobs.warm_pools import is_parked
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.control.server.pages.machine_page import MachinePage
from clary.control.services.call import Services

WARM = "warm"
# Name of a host's series -> member of the page.
MEASURED = {
    "host/cpu_percent": "cpu_percent",
    "host/memory_bytes": "memory_bytes",
    "host/memory_limit_bytes": "memory_limit_bytes",
    "host/memory_percent": "memory_percent",
}


def hosts_page(services: Services, samples: SampleGateway, machine: MachinePage | None = None) -> dict[str, Any]:
    """Return the hosts and pools that exist now, and the facts of the machine.

    Args:
        services: know jobs and pools.
        samples: has the last values of hosts; forgets the values of jobs without hosts.
        machine: measures this machine; None omits it.
    """
    jobs = services.hub.active_jobs()
    last = {(values.job_name, values.host): values.values for values in samples.last_values(jobs)}
    return {
        "machine": None if machine is None else machine.facts(),
        "hosts": [row for job in jobs for row in _hosts(job, last)],
        "pools": [_pool(services, job) for job in jobs if _has_pool(job)],
    }


def _hosts(job: TrainingJob, last: Mapping[tuple[str, str], Mapping[str, float]]) -> list[dict[str, Any]]:
    planned = {host["name"]: host for host in (job.plan or {"hosts": []})["hosts"]}
    types = {name: str(host["instance_type"]) for name, host in planned.items()}
    sick = {sickness.host: sickness.reason for sickness in diagnose(findings_of(job))}
    fallback = JobRequest(job.request).instance_groups[0].instance_type
    return [
        {
            "name": name,
            "job": job.name,
            "attempt": job.attempt,
            "state": WARM if is_parked(job) else record.facts.phase.value,
            "instance_type": types.get(name, fallback),
            "since": to_plain(_since(job, record)),
            "health": "sick" if name in sick else _health_without_trouble(record),
            "why": sick.get(name) or record.lost_why or record.facts.standstill,
            "pool": job.pool,
            **_measured(last.get((job.name, name), {})),
        }
        for name, record in job.hosts.items()
    ]


def _health_without_trouble(record: HostRecord) -> str:
    found = record.facts.health
    if any(finding.state is FindingState.PENDING for finding in found):
        return "checking"
    return "well" if found else "unchecked"


def _has_pool(job: TrainingJob) -> bool:
    """Whether the job holds a pool whose hosts wait, or will wait, for other jobs."""
    if not job.pool or job.warm_pool is None:
        return False
    return job.warm_pool.status in (WarmPoolStatus.IN_USE, WarmPoolStatus.AVAILABLE)


def _since(job: TrainingJob, record: HostRecord) -> Any:
    if is_parked(job) and job.warm_pool is not None and job.warm_pool.available_at is not None:
        return job.warm_pool.available_at
    return record.facts.phase_started_at


def _measured(values: Mapping[str, float]) -> dict[str, float | None]:
    found = {shown: values.get(series) for series, shown in MEASURED.items()}
    return {name: value if value is not None and math.isfinite(value) else None for name, value in found.items()}


def _pool(services: Services, job: TrainingJob) -> dict[str, Any]:
    assert job.warm_pool is not None, "the caller looked"
    is_waiting = job.warm_pool.status is WarmPoolStatus.AVAILABLE
    request = JobRequest(job.request)
    retained_s = job.warm_pool.retained_s(job.now(services.clock))
    return {
        "name": job.pool,
        "job": job.name,
        "status": job.warm_pool.status.value,
        "is_ready": is_parked(job),
        "num_hosts": len(job.hosts),
        "instance_type": ", ".join(dict.fromkeys(group.instance_type for group in request.instance_groups)),
        "since": to_plain(job.warm_pool.available_at),
        "keep_alive_s": request.keep_alive_s,
        "left_s": max(0.0, request.keep_alive_s - retained_s) if is_waiting else None,
    }
