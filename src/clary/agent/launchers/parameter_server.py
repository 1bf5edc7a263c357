"""Parameter servers, as in the images of each framework.

TensorFlow: every host has a server and a worker, with TF_CONFIG; the first host is the master. There is one process per
host: the shim starts the server and the worker, and ends the server after the master has ended, which other hosts
detect at the master's port. With one host the program runs alone, as on SageMaker. MXNet: every host has a server and a
worker, the first host also a scheduler; DMLC_* variables define the roles. PyTorch's images have no parameter servers:
every host runs the program alone.
Source: sagemaker-tensorflow-training `training.train`, `_build_tf_config`, `_run_ps`; sagemaker-mxnet-training
`training.train`, `_env_vars_for_role`; sagemaker-pytorch-training `training.train`; ps-lite `van.cc` (DMLC_NODE_HOST).
"""

from __future__ import annotations

import json

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers import plain
from clary.agent.launchers.context import LaunchContext
from clary.agent.launchers.shim_files import PARAMETER_SERVER_SHIM
from clary.contract.settings.distribution import ServerStyle, server_style

_WORKER_PORT = 2222
_SERVER_PORT = 2223
_SCHEDULER_PORT = "8000"
OPEN_SERVERS = (
    "this host shares its machine's network. TensorFlow's servers listen on every address of it and ask for no proof: "
    "a client that reaches them can run operations here, and read and write files as this program"
)
_OPEN_SERVERS_OF_MXNET = (
    "this host shares its machine's network. MXNet's servers ask for no proof: a client that reaches them can "
    "run code as this program"
)


def build(context: LaunchContext) -> tuple[ProcessSpec, ...]:
    """Return the single process of this host; where there are servers, its rank is the host's index."""
    style = server_style(context.plan.environment.image)
    if style is ServerStyle.MXNET:
        return _build_mxnet(context)
    if len(context.peers) == 1 or style is ServerStyle.NONE:
        return plain.build(context)
    return _build_tensorflow(context)


def notes(context: LaunchContext) -> tuple[str, ...]:
    """Return notes: no parameter servers with PyTorch; servers that other users of a shared network can reach."""
    style = server_style(context.plan.environment.image)
    if style is ServerStyle.NONE:
        return ("parameter_server has no effect with PyTorch: every host runs the program alone, as on SageMaker",)
    has_servers = len(context.peers) > 1 or style is ServerStyle.MXNET
    if context.has_own_network or not has_servers:
        return ()
    return (OPEN_SERVERS if style is ServerStyle.TENSORFLOW else _OPEN_SERVERS_OF_MXNET,)


def _build_mxnet(context: LaunchContext) -> tuple[ProcessSpec, ...]:
    num_hosts = str(len(context.peers))
    scheduler = context.peers[0]
    # Without this variable the node uses the machine's first non-loopback address, which the network can reach.
    bound = {} if context.is_isolated else {"DMLC_NODE_HOST": context.host.address}
    additions = {
        **{name: address for name, address in bound.items() if name not in context.variables},
        "DMLC_NUM_WORKER": num_hosts,
        "DMLC_NUM_SERVER": num_hosts,
        "DMLC_ROLE": "worker",
        "DMLC_PS_ROOT_URI": scheduler.address,
        "DMLC_PS_ROOT_PORT": _SCHEDULER_PORT if context.is_isolated else str(context.plan.network.master_port + 1),
        "PS_VERBOSE": "0",
        "CLARY_PS_ROLES": "scheduler,server" if context.node_rank == 0 else "server",
    }
    argv = (context.python, PARAMETER_SERVER_SHIM, *context.program())
    return (context.process(argv, additions=additions, rank=context.node_rank),)


def _build_tensorflow(context: LaunchContext) -> tuple[ProcessSpec, ...]:
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
    if not context.is_isolated:  # shared address: two ports per host, after the master's
        port = context.plan.network.master_port + 1 + 2 * index + (port - _WORKER_PORT)
    return f"{context.address_of(context.peers[index])}:{port}"
