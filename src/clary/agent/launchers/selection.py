"""The choice of a job's launcher.

Where: the supervisor calls `select` when it plans the program, after code and environment are ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers import (
    built_in,
    command,
    mpi,
    multi_worker_mirrored,
    parameter_server,
    plain,
    smddp,
    toolkit,
    torch_distributed,
)
from clary.agent.launchers.context import LaunchContext
from clary.base.errors import AgentError, Fault
from clary.contract.settings.distribution import XLA_REFUSAL, DistributionKind


def _no_notes(_: LaunchContext) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A method to start a job's processes.

    Args:
        name: name for logs and `describe`.
        build: returns the processes of the context's host. Raises: AgentError for a program that it cannot launch.
        notes: returns sentences on differences from the user's expectations.
        uses_ssh: whether its processes may connect to other hosts by ssh; Clary's own launchers do not.
    """

    name: str
    build: Callable[[LaunchContext], tuple[ProcessSpec, ...]]
    notes: Callable[[LaunchContext], tuple[str, ...]] = _no_notes
    uses_ssh: bool = False


# As in sagemaker-training 5.1.4 `mpi._modelparallel_environment_command`. `mp_parameters` reach the program as
# `--mp_parameters` and as SM_HP_MP_PARAMETERS; the environment has both already.
_SMP_NCCL: Mapping[str, str] = {"NCCL_PROTO": "simple", "NCCL_ALGO": "ring"}
_COMMAND = Launcher(name="command", build=command.build, notes=command.notes, uses_ssh=True)
_TOOLKIT = Launcher(name="toolkit", build=toolkit.build, notes=toolkit.notes, uses_ssh=True)
_BUILT_IN = Launcher(name="built_in", build=built_in.build, notes=built_in.notes)
_PLAIN = Launcher(name="plain", build=plain.build)
_BY_KIND: Mapping[DistributionKind, Launcher] = {
    DistributionKind.PLAIN: _PLAIN,
    DistributionKind.TORCH_DISTRIBUTED: Launcher(name="torch_distributed", build=torch_distributed.build),
    DistributionKind.PYTORCHDDP_OR_SMDDP: Launcher(name="smddp", build=smddp.build, notes=smddp.notes),
    DistributionKind.MPI: Launcher(name="mpi", build=mpi.build, notes=mpi.notes),
    DistributionKind.MODELPARALLEL: Launcher(
        name="modelparallel", build=partial(mpi.build, additions=_SMP_NCCL), notes=mpi.notes
    ),
    DistributionKind.PARAMETER_SERVER: Launcher(
        name="parameter_server", build=parameter_server.build, notes=parameter_server.notes
    ),
    DistributionKind.MULTI_WORKER_MIRRORED: Launcher(
        name="multi_worker_mirrored", build=multi_worker_mirrored.build, notes=multi_worker_mirrored.notes
    ),
}


def select(context: LaunchContext) -> Launcher:
    """Return the launcher for a host: for the request's command, the image's program, or the distribution.

    A host whose instance group takes no part in the distribution gets the plain launcher.
    Raises: AgentError with fault USER for a distribution that cannot be launched.
    """
    if context.plan.command is not None:
        return _COMMAND
    if context.entry_point is None and built_in.is_wanted(context):
        return _BUILT_IN
    if context.entry_point is None or toolkit.is_asked_for(context):
        return _TOOLKIT
    if not context.distribution.includes(context.host.instance_group):
        return _PLAIN
    if context.distribution.kind is DistributionKind.XLA:
        raise AgentError(f"{XLA_REFUSAL}.", fault=Fault.USER)
    return _BY_KIND[context.distribution.kind]
