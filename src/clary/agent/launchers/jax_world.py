"""Variables by which `jax.distributed.initialize()`, without arguments, finds a job's other processes.

Where: plain, torch_distributed, smddp and mpi add them to their processes. jax itself reads only the address;
`shims/clary_jax.py` passes the other values to jax. Variables of the user's Environment are not overridden.
Source: jax 0.10.2 `_src/distributed.py` (the address); the jax runtime of Kubeflow Trainer 2 (the other two variables).
"""

from __future__ import annotations

from clary.agent.launchers.context import LaunchContext

COORDINATOR_ADDRESS = "JAX_COORDINATOR_ADDRESS"
NUM_PROCESSES = "JAX_NUM_PROCESSES"
PROCESS_ID = "JAX_PROCESS_ID"


def coordinator_variables(context: LaunchContext) -> dict[str, str]:
    """Return the variable with the address of jax's coordinator, which process 0 opens; for ranks of mpirun."""
    address = f"{context.master_address}:{context.plan.network.jax_port}"
    return _without_the_users(context, {COORDINATOR_ADDRESS: address})


def process_variables(context: LaunchContext, *, process_id: int, num_processes: int) -> dict[str, str]:
    """Return the variables of one of the job's processes.

    Args:
        context: of the process's host.
        process_id: 0 to `num_processes` - 1; 0 runs on the master.
        num_processes: number of processes on all peers.
    """
    numbers = {NUM_PROCESSES: str(num_processes), PROCESS_ID: str(process_id)}
    return {**coordinator_variables(context), **_without_the_users(context, numbers)}


def host_variables(context: LaunchContext) -> dict[str, str]:
    """Return the variables of a host with a single process; empty if it takes no part in the distribution."""
    if context.host not in context.peers:
        return {}
    return process_variables(context, process_id=context.node_rank, num_processes=len(context.peers))


def _without_the_users(context: LaunchContext, variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in context.variables}
