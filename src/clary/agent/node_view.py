"""The facts of this node, and the launch plan adapted to them.

Where: `python -m clary.agent --node FILE` on machines without the service; `agent.boot` writes the file. All hosts
share one plan, but the service's address, folders, GPUs, interface and isolation differ between nodes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clary.base.errors import AgentError, ContractError
from clary.base.plain import from_plain
from clary.contract.enrolment import NodeReport
from clary.contract.launch_plan import Endpoint, HostPlan, Isolation, LaunchPlan


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """The node of one host."""

    report: NodeReport
    service_url: str  # URL on 127.0.0.1 of the carrier, which forwards connections to the service

    def seen(self, plan: LaunchPlan, host: str) -> LaunchPlan:
        """Return the plan with this host's values.

        Raises: KeyError if the plan lacks this host.
        """
        scratch = Path(self.report.scratch)
        own = plan.host(host)
        jobs = scratch / "jobs"
        return replace(
            plan,
            isolation=Isolation(self.report.isolation),
            service_url=self.service_url,
            object_store=self._endpoint(plan.object_store, plan.service_url),
            job_endpoint=self._endpoint(plan.job_endpoint, plan.service_url),
            work_folder=str(jobs / plan.job_name / str(plan.attempt)),
            pool_folder=str(jobs / plan.pool / "1"),
            cache_folder=str(scratch.parent.parent / "cache"),
            network=replace(plan.network, interface=self._interface(own.address) or plan.network.interface),
            hosts=tuple(self._with_gpus(other) if other.name == host else other for other in plan.hosts),
        )

    def _endpoint(self, endpoint: Endpoint, service_url: str) -> Endpoint:
        return replace(endpoint, url=self.service_url) if endpoint.url == service_url else endpoint

    def _interface(self, address: str) -> str:
        return next((own.interface for own in self.report.addresses if own.address == address), "")

    def _with_gpus(self, host: HostPlan) -> HostPlan:
        given: Sequence[int] = [gpu.index for gpu in self.report.gpus]
        indices = tuple(given[: len(host.resources.gpu_indices)])
        return replace(host, resources=replace(host.resources, gpu_indices=indices))


def read_node_view(path: str) -> NodeView:
    """Read the file written by the boot program.

    Raises: AgentError if the file cannot be read or contains no report.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        url = str(document.pop("service_url"))
        return NodeView(report=from_plain(NodeReport, document), service_url=url)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ContractError) as error:
        raise AgentError(f"{path}: does not hold the boot program's report about this node: {error}") from error
