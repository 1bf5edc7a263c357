"""Processes with ranks, for launchers that start ranks themselves: one process per local rank.

Where: torch_distributed, smddp and mpi build their processes with these functions.
Source: torch 2.13 `torch.distributed.run` (variables of a worker) and `elastic.multiprocessing`; Open MPI 4.1 FAQ,
"What environment variables does Open MPI set for each process".
"""

from __future__ import annotations

from collections.abc import Mapping

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers import jax_world
from clary.agent.launchers.context import LaunchContext


def first_rank(context: LaunchContext) -> int:
    """Return the global rank of this host's first process."""
    return sum(peer.processes_per_host for peer in context.peers[: context.node_rank])


def world_size(context: LaunchContext) -> int:
    """Return the number of ranks on all peers."""
    return sum(peer.processes_per_host for peer in context.peers)


def torch_variables(context: LaunchContext, local_rank: int) -> dict[str, str]:
    """Return the variables that torchrun sets for one worker, except the master's address.

    OMP_NUM_THREADS is 1 if several ranks share a host and the user did not set it, as with torchrun.
    """
    rank = first_rank(context) + local_rank
    num_local, num_ranks = context.host.processes_per_host, world_size(context)
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_local),
        "GROUP_RANK": str(context.node_rank),
        "GROUP_WORLD_SIZE": str(len(context.peers)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(num_ranks),
        "TORCHELASTIC_RUN_ID": f"{context.plan.job_name}-{context.plan.attempt}",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # Rank 0 serves the store itself, because there is no torchrun.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": str(context.inside.root / ".clary" / "errors" / f"rank-{rank}.json"),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    if num_local > 1 and "OMP_NUM_THREADS" not in context.variables:
        variables["OMP_NUM_THREADS"] = "1"
    return variables


def rank_variables(context: LaunchContext, local_rank: int) -> dict[str, str]:
    """Return the variables of a rank started by Clary: torchrun's variables, and jax's to find its peers."""
    variables = jax_world.process_variables(
        context, process_id=first_rank(context) + local_rank, num_processes=world_size(context)
    )
    return {**torch_variables(context, local_rank), **variables}


def mpi_variables(context: LaunchContext, local_rank: int) -> dict[str, str]:
    """Return the variables of mpirun for one rank, which programs without MPI also read."""
    return {
        "OMPI_COMM_WORLD_RANK": str(first_rank(context) + local_rank),
        "OMPI_COMM_WORLD_SIZE": str(world_size(context)),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(context.host.processes_per_host),
        "OMPI_COMM_WORLD_NODE_RANK": str(local_rank),
        "OMPI_UNIVERSE_SIZE": str(world_size(context)),
    }


def mpi_ranks(context: LaunchContext, shared: Mapping[str, str]) -> tuple[ProcessSpec, ...]:
    """Return this host's ranks with the variables of mpirun and torchrun, and the variables `shared`."""
    program = context.program()
    return tuple(
        context.process(
            program,
            additions={**shared, **rank_variables(context, local_rank), **mpi_variables(context, local_rank)},
            rank=first_rank(context) + local_rank,
            local_rank=local_rank,
        )
        for local_rank in range(context.host.processes_per_host)
    )


def option_variables(context: LaunchContext) -> dict[str, str]:
    """Return the variables of `-x NAME=VALUE` in custom_mpi_options; `-x NAME` needs no action."""
    options: Mapping[str, str | None] = context.distribution.mpi_options.variables
    return {name: value for name, value in options.items() if value is not None}
