"""The machines (nodes) on which hosts of jobs run, by kind.

Where: the answer to /clary/v1/capacity, which `clary capacity` prints.

    {"engine": "slurm", "waits_by_itself": true, "url": "https://10.0.0.5:4571", "num_nodes": 12,
     "kinds": [{"name", "num_cpus", "memory_bytes", "num_gpus", "num_nodes", "num_free", "maps_to", "instance_types",
                "isolation", "nodes", "out_of_use"}],
     "remarks": ["[slurm.ml.x] selects no node: no partition gpuu has nodes; there are cpu, gpu"]}

The member `num_nodes` counts a node of several kinds once. A kind's `nodes` are names with engine slurm, empty with
others.
With engine local, this machine is the only kind, and `num_nodes` is the number of hosts that may run at once.
"""

from __future__ import annotations

from typing import Any

from clary.base.errors import EngineError
from clary.base.plain import to_plain
from clary.control.engines.cluster.cluster_engine import ClusterEngine
from clary.control.engines.cluster.node_kinds import counts
from clary.control.engines.cluster.scheduler import NodeKind
from clary.control.server.pages.machine_page import MachinePage


async def capacity_page(cluster: ClusterEngine | None, machine: MachinePage | None) -> dict[str, Any]:
    """Return the page.

    Args:
        cluster: engine of other machines; None with engine local.
        machine: measures this machine; None if it is not measured.
    """
    if cluster is not None:
        remarks: list[str] = []
        try:
            cluster.kinds = await cluster.scheduler.capacity()
        except EngineError as error:
            remarks.append(error.message + ("; the nodes are those of its last answer" if cluster.kinds else ""))
        kinds = cluster.kinds
        name, url = cluster.scheduler.name, cluster.service_url
        return {
            "engine": name,
            "waits_by_itself": True,
            "url": url,
            "num_nodes": sum(count for _, count in counts(kinds)),
            "kinds": [to_plain(kind) for kind in kinds],
            "remarks": [*remarks, *cluster.scheduler.remarks],
        }
    facts = None if machine is None else machine.facts()
    if not facts:  # not measured
        return {"engine": "local", "waits_by_itself": False, "url": "", "num_nodes": 0, "kinds": [], "remarks": []}
    most = facts["max_hosts"]
    kind = NodeKind(
        name="machine",
        num_cpus=facts["num_cpus"],
        memory_bytes=facts["memory_bytes"],
        num_gpus=facts["num_gpus"],
        num_nodes=most,
        num_free=max(0, most - facts["hosts_held"]),
        maps_to="hosts on this machine, which share it",
    )
    return {
        "engine": "local",
        "waits_by_itself": False,
        "url": "",
        "num_nodes": most,
        "kinds": [to_plain(kind)],
        "remarks": [],
    }
