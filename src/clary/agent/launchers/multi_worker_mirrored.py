"""TensorFlow's MultiWorkerMirroredStrategy: the program once on every host, with TF_CONFIG.

Source: sagemaker-tensorflow-training: every host is a worker on port 8890, in the order of the hosts' names.
"""

from __future__ import annotations

import json

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers.context import LaunchContext
from clary.agent.launchers.parameter_server import OPEN_SERVERS
from clary.contract.launch_plan import HostPlan

_PORT = 8890


def build(context: LaunchContext) -> tuple[ProcessSpec, ...]:
    """Return the single process of this host; its rank is the worker's index."""
    config = {
        "cluster": {"worker": [_address(context, index, peer) for index, peer in enumerate(context.peers)]},
        "environment": "cloud",
        "task": {"index": context.node_rank, "type": "worker"},
    }
    additions = {"TF_CONFIG": json.dumps(config)}
    return (context.process(context.program(), additions=additions, rank=context.node_rank),)


def notes(context: LaunchContext) -> tuple[str, ...]:
    """Return a note, if hosts share the machine's network, that other users can reach the workers' servers."""
    return () if context.has_own_network or len(context.peers) == 1 else (OPEN_SERVERS,)


def _address(context: LaunchContext, index: int, peer: HostPlan) -> str:
    # Hosts with the same address share its ports, so each host gets a different port above the master's.
    port = _PORT if context.is_isolated else context.plan.network.master_port + 1 + index
    return f"{context.address_of(peer)}:{port}"
