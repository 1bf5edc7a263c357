"""mpi: a real mpirun across the hosts if Open MPI is installed, otherwise ranks started by Clary.

With Open MPI, the first host runs mpirun; the other hosts run a small server (`shims/clary_mpi.py`) through which
mpirun starts its daemons instead of ssh: no sshd and no keys. Hosts without isolation need no server: mpirun of the
first host starts all ranks. Ranks get the variables of their own host. Without Open MPI, Clary starts the ranks with
the variables of both mpirun and torchrun; programs that link MPI (mpi4py) then see a world of one rank, and a note
reports it.
Source: sagemaker-training 5.1.4 `mpi.MasterRunner` (options of mpirun).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers import jax_world
from clary.agent.launchers.context import LaunchContext
from clary.agent.launchers.open_mpi import OpenMpi
from clary.agent.launchers.ranks import (
    mpi_ranks,
    option_variables,
    world_size,
)
from clary.agent.launchers.shim_files import MPI_RSH_SHIM, MPI_SHIM

REMOTE_PORT = 7790  # port of the server on each host's own address
_OPEN_MPI_5 = 5  # PRRTE instead of ORTE: the launcher's parameters have other names
_DEFAULTS: Mapping[str, str] = {"NCCL_MIN_NRINGS": "4", "NCCL_DEBUG": "INFO"}


def build(context: LaunchContext, *, additions: Mapping[str, str] | None = None) -> tuple[ProcessSpec, ...]:
    """Return the processes of this host; `additions` are variables of every rank."""
    shared = {**_DEFAULTS, **(additions or {}), **option_variables(context)}
    if context.open_mpi is None:
        return mpi_ranks(context, shared)
    shared = {**jax_world.coordinator_variables(context), **shared}
    if not context.is_isolated or len(context.peers) == 1:
        return _local_mpirun(context, context.open_mpi, shared)
    return _remote_mpirun(context, context.open_mpi, shared)


def notes(context: LaunchContext) -> tuple[str, ...]:
    """Return notes on the start of ranks, and on custom options without effect."""
    ignored = context.distribution.mpi_options.only_mpirun
    if context.open_mpi is None:
        found = ["no Open MPI in the environment: ranks are started without mpirun; programs that use mpi4py need it"]
        if ignored:
            found.append(f"custom_mpi_options without effect, as no mpirun runs: {', '.join(ignored)}")
        return tuple(found)
    if not context.is_isolated and len(context.peers) > 1:
        return (f"hosts share this machine: mpirun of {context.master.name} starts the ranks of all of them",)
    return ()


def _local_mpirun(context: LaunchContext, mpi: OpenMpi, shared: Mapping[str, str]) -> tuple[ProcessSpec, ...]:
    if context.host != context.master:
        text = f"ranks of {context.host.name} are started by mpirun of {context.master.name}"
        return (context.process((context.python, "-c", f"print({text!r})")),)
    slots = f"localhost:{world_size(context)}"
    mpirun = (mpi.mpirun, "--host", slots, "--oversubscribe", *_options(context, mpi, shared), *context.program())
    return (_leader(context, mpirun, {**shared, "CLARY_MPI_SECRET": "", "CLARY_MPI_PEERS": "{}"}),)


def _remote_mpirun(context: LaunchContext, mpi: OpenMpi, shared: Mapping[str, str]) -> tuple[ProcessSpec, ...]:
    others = {peer.name: [peer.address, REMOTE_PORT] for peer in context.peers if peer != context.master}
    additions = {**shared, "CLARY_MPI_SECRET": _secret(context)}
    if context.host != context.master:
        listen = f"{context.host.address}:{REMOTE_PORT}"
        return (context.process((context.python, MPI_SHIM, "serve", listen), additions=additions),)
    additions["CLARY_MPI_PEERS"] = json.dumps(others)
    slots = ",".join(f"{peer.name}:{peer.processes_per_host}" for peer in context.peers)
    interface = context.plan.network.interface
    if mpi.major >= _OPEN_MPI_5:
        reach = ["--prtemca", "plm_ssh_agent", MPI_RSH_SHIM, "--prtemca", "plm_ssh_no_tree_spawn", "1"]
        reach += ["--prtemca", "prte_if_include", interface]
    else:
        reach = ["--mca", "plm_rsh_agent", MPI_RSH_SHIM, "--mca", "plm_rsh_no_tree_spawn", "1"]
        reach += ["--mca", "oob_tcp_if_include", interface]
    options = ("--host", slots, *reach, "--mca", "btl_tcp_if_include", interface)
    mpirun = (mpi.mpirun, *options, *_options(context, mpi, shared), *context.program())
    return (_leader(context, mpirun, additions),)


def _leader(context: LaunchContext, mpirun: tuple[str, ...], additions: Mapping[str, str]) -> ProcessSpec:
    return context.process((context.python, MPI_SHIM, "lead", *mpirun), additions=additions)


def _options(context: LaunchContext, mpi: OpenMpi, shared: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options for mpirun; the user's options come last and so take precedence."""
    options: list[str] = ["-np", str(world_size(context)), "--allow-run-as-root"]
    options += ["--bind-to", "none", "--map-by", "slot", "--mca", "pml", "ob1"]
    if mpi.major >= _OPEN_MPI_5:
        options += ["--output", "tag"]
    else:
        options.append("--tag-output")
        options += ["--mca", "btl", "^openib", "--mca", "btl_vader_single_copy_mechanism", "none"]
        options += ["--mca", "orte_abort_on_non_zero_status", "1"]
    for name in shared:
        options += ["-x", name]  # the value is in mpirun's own environment
    custom = context.distribution.mpi_options
    for option, name, value in custom.mca:
        options += [f"--{option}", name, value]
    return (*options, *custom.flags)


def _secret(context: LaunchContext) -> str:
    """Return the secret of this attempt's hosts; the agents' token cannot be derived from it."""
    text = f"mpi:{context.plan.job_name}:{context.plan.attempt}:{context.plan.agent_token}"
    return hashlib.sha256(text.encode()).hexdigest()
