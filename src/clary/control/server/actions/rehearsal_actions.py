"""Rehearsals over HTTP: the available faults, injection of faults into a job, and the records of its programs.

Where: `clary rehearse` sends these requests. Faults are injected only into jobs that were created as rehearsals.

    GET  /clary/v1/rehearsal                 -> kinds of faults that are not available here; largest size of disks
    GET  /clary/v1/jobs/NAME/request         -> the job's CreateTrainingJob request
    POST /clary/v1/jobs/NAME/strike          {"kind": "kill", "hosts": ["algo-2"]}
                                             {"kind": "kill-rank", "rank": 3}
                                             {"kind": "partition", "hosts": ["algo-2"], "is_over": false}
                                             {"kind": "partition", "hosts": ["algo-1", "algo-2"], "between": true}
                                             {"kind": "disk-full", "hosts": ["algo-2"], "is_over": false}
                                             {"kind": "slow", "hosts": ["algo-2"], "rate_mbit_s": 5, "is_over": false}
    GET  /clary/v1/jobs/NAME/records?attempt=1   -> records of an ended attempt
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from clary.base.errors import EngineError, WireError
from clary.base.plain import from_plain
from clary.contract.agent_protocol import HostPhase
from clary.contract.launch_plan import LaunchPlan
from clary.contract.rehearsals import is_rehearsal
from clary.control.jobs.training_job import TrainingJob

MAX_RATE_MBIT_S = 1_000_000.0
KINDS = ("kill", "kill-rank", "partition", "slow", "disk-full")


class Faults(Protocol):
    """Faults that an engine can cause on the hosts of a rehearsal; an injection that fails raises EngineError."""

    def refusals(self) -> Mapping[str, str]:
        """Return kind of fault -> the reason why it is not available here."""

    def largest_disk_bytes(self) -> int:
        """Return the largest total size in bytes of the disks of a rehearsal's hosts."""

    async def kill_host(self, plan: LaunchPlan, host: str) -> None:
        """Kill all processes of a host at once."""

    async def kill_rank(self, plan: LaunchPlan, rank: int) -> None:
        """Kill the processes of one rank."""

    async def connect(self, plan: LaunchPlan, hosts: Sequence[str], *, up: bool) -> None:
        """Disconnect hosts from their job's network, or connect them again.

        Args:
            plan: plan of the running attempt.
            hosts: names of the hosts.
            up: whether to connect them; a repeated call does nothing.
        """

    async def connect_two(self, plan: LaunchPlan, hosts: tuple[str, str], *, up: bool) -> None:
        """Cut only the link between two hosts, or connect it again.

        Args:
            plan: plan of the running attempt.
            hosts: names of the two hosts.
            up: whether to connect them; a repeated call does nothing.
        """

    async def fill_disk(self, plan: LaunchPlan, host: str, *, is_full: bool) -> None:
        """Fill a host's private disk, or free the space again.

        Args:
            plan: plan of the running attempt.
            host: name of the host.
            is_full: whether to fill it; a repeated call does nothing.
        """

    async def set_rate(self, plan: LaunchPlan, host: str, rate_mbit_s: float | None) -> None:
        """Limit the rate of a host's link, or restore the plan's rate.

        Args:
            plan: plan of the running attempt.
            host: name of the host.
            rate_mbit_s: above 0; None restores the plan's rate.
        """

    async def records(self, job_name: str, attempt: int) -> list[dict[str, Any]]:
        """Return the records that the programs of an ended attempt wrote."""


class RehearsalActions:
    """Injects faults into hosts of rehearsals, and reads the records of their programs."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def page(self) -> dict[str, Any]:
        """Return the faults that are not available here, with reasons, and the largest size of disks."""
        largest_bytes = self._faults.largest_disk_bytes()
        return {"refusals": dict(self._faults.refusals()), "largest_disk_bytes": largest_bytes}

    async def records(self, job: TrainingJob, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the records of one attempt. Raises: WireError if the job is not a rehearsal or lacks the attempt."""
        _require_rehearsal(job, "has written nothing down")
        attempt = query.get("attempt", str(job.attempt))
        if attempt not in {str(number) for number in range(1, job.attempt + 1)}:
            raise WireError("NotFound", f"{job.name} has no attempt {attempt[:20]}", http_status=404)
        return {"is_released": job.is_released, "records": await self._faults.records(job.name, int(attempt))}

    async def strike(self, job: TrainingJob, body: Any) -> dict[str, Any]:
        """Inject a fault into a job's hosts, or end an earlier fault.

        Raises: WireError if the job is not a rehearsal, does not train now, or lacks the named host; if the fault is
        unknown or not available here; and if the injection fails.
        """
        _require_rehearsal(job, "is not struck")
        if not isinstance(body, dict) or body.get("kind") not in KINDS:
            raise WireError("ValidationException", f"expected kind {', '.join(KINDS)}, got {str(body)[:80]}")
        kind, is_over = body["kind"], bool(body.get("is_over"))
        refusal = self._faults.refusals().get(kind)
        if refusal is not None:
            raise WireError("ValidationException", f"{kind}: {refusal}")
        is_training = any(record.facts.phase is HostPhase.RUNNING for record in job.hosts.values())
        if job.plan is None or job.is_terminal or job.ending is not None or not is_training:
            raise WireError(
                "ValidationException", f"{job.name} is not training now; it is {job.secondary_status.value}"
            )
        plan = from_plain(LaunchPlan, job.plan)
        try:
            if kind == "kill-rank":
                await self._faults.kill_rank(plan, _number(body, "rank", int))
            else:
                await self._strike_hosts(plan, kind, _hosts(job, body), body, is_over=is_over)
        except EngineError as error:
            raise WireError("ValidationException", error.message) from error
        return {"name": job.name, "attempt": job.attempt}

    async def _strike_hosts(
        self, plan: LaunchPlan, kind: str, hosts: list[str], body: dict[str, Any], *, is_over: bool
    ) -> None:
        if kind == "partition" and body.get("between"):
            if len(hosts) != 2 or hosts[0] == hosts[1]:
                raise WireError("ValidationException", f"between takes two hosts, got {', '.join(hosts)[:80]}")
            await self._faults.connect_two(plan, (hosts[0], hosts[1]), up=is_over)
            return
        if kind == "partition":
            await self._faults.connect(plan, hosts, up=is_over)
            return
        for host in hosts:
            if kind == "kill":
                await self._faults.kill_host(plan, host)
            elif kind == "disk-full":
                await self._faults.fill_disk(plan, host, is_full=not is_over)
            else:
                rate = None if is_over else _number(body, "rate_mbit_s", float)
                await self._faults.set_rate(plan, host, rate)


def _require_rehearsal(job: TrainingJob, what: str) -> None:
    if not is_rehearsal(job.request):
        raise WireError(
            "AccessDenied",
            f"{job.name} is not a rehearsal and {what}; create a rehearsal of it with: clary rehearse {job.name}",
            http_status=403,
        )


def _hosts(job: TrainingJob, body: dict[str, Any]) -> list[str]:
    hosts = body.get("hosts")
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) for host in hosts):
        raise WireError(
            "ValidationException", f"expected a list of hosts from {', '.join(job.hosts)}, got {str(hosts)[:80]}"
        )
    unknown = [host[:80] for host in hosts if host not in job.hosts]
    if unknown:
        message = f"{job.name} has no host {', '.join(unknown)}; it has {', '.join(job.hosts)}"
        raise WireError("NotFound", message, http_status=404)
    return hosts


def _number(body: dict[str, Any], name: str, kind: type[int | float]) -> Any:
    value = body.get(name)
    is_number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_RATE_MBIT_S:  # type: ignore[operator] # is_number says so
        raise WireError("ValidationException", f"{name} must be a number from 0, got {str(value)[:40]}")
    return value
