"""TensorFlow's parameter servers: on every host a server and a worker, with TF_CONFIG; the first host is the master.

One process a host: the shim starts the server beside the worker and ends it when the master has ended, which other
hosts see by its port. With one host the program runs plainly, as on SageMaker.
Source: sagemaker-tensorflow-training `training.train`, `_build_tf_config`, `_run_ps`.
"""

from __future__ import annotations

import json

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers import plain
from clary.agent.launchers.context import LaunchContext
from clary.agent.launchers.shim_files import PARAMETER_SERVER_SHIM

_WORKER_PORT = 2222
_SERVER_PORT = 2223


def build(context: LaunchContext) -> tuple[ProcessSpec, ...]:
    """Return the one process of this host; its rank is 0 for the master."""
    if len(context.peers) == 1:
        return plain.build(context)
    is_master = context.node_rank == 0
    task = {"index": 0, "type": "master"} if is_master else {"index": context.node_rank - 1, "type": "worker"}
    master = _address(context, 0, _WORKER_PORT)
    config = {
        "cluster": {
            "master": [master],
            "ps": [_address(context, index, _SERVER_PORT) for index in range(len(context.peers))],
            "worker": [_address(context, index, _WORKER_PORT) for index in range(1, len(context.peers))],
        },
        "environment": "cloud",
        "task": task,
    }
    additions = {
        "TF_CONFIG": json.dumps(config),
        "CLARY_PS_TASK": str(context.node_rank),
        "CLARY_PS_MASTER": "" if is_master else master,
    }
    argv = (context.python, PARAMETER_SERVER_SHIM, *context.program())
    return (context.process(argv, additions=additions, rank=context.node_rank),)


def _address(context: LaunchContext, index: int, port: int) -> str:
    if not context.is_isolated:  # a shared address: two ports a host, after the master's
        port = context.plan.network.master_port + 1 + 2 * index + (port - _WORKER_PORT)
    return f"{context.address_of(context.peers[index])}:{port}"
