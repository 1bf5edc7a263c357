"""pytorchddp and smdistributed.dataparallel: ranks as started by `mpirun smddprun`.

Both use the same protocol. Ranks get the variables of torchrun and mpirun, because scripts use either set, and the
variables of SMDDP's launcher, except FI_* and NCCL_PROTO, which are for Amazon's network cards.
Source: sagemaker-training 5.1.4 `smdataparallel.SMDataParallelRunner`; SMDATAPARALLEL_LOCAL_RANK: transformers 5.23
`Trainer._wrap_model`, which reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers.context import LaunchContext
from clary.agent.launchers.ranks import mpi_ranks, option_variables
from clary.contract.settings.hyperparameters import platform_text

_SERVER_PORT = "7592"
_DEFAULTS: Mapping[str, str] = {"RDMAV_FORK_SAFE": "1", "NCCL_DEBUG": "INFO"}
# accelerate 1.15 `state.PartialState.set_device` and `Accelerator.prepare_model`, which otherwise pass a GPU's index to
# DDP.
_ACCELERATE_ON_CPU: Mapping[str, str] = {"ACCELERATE_TORCH_DEVICE": "cpu", "ACCELERATE_BYPASS_DEVICE_MAP": "true"}


def build(context: LaunchContext) -> tuple[ProcessSpec, ...]:
    """Return one process per local rank."""
    shared = {**_DEFAULTS, **_without_gpus(context), **_smddp_variables(context), **option_variables(context)}
    return tuple(
        replace(rank, environment={**rank.environment, "SMDATAPARALLEL_LOCAL_RANK": str(rank.local_rank)})
        for rank in mpi_ranks(context, shared)
    )


def notes(context: LaunchContext) -> tuple[str, ...]:
    """Return a note on custom options without effect, if there are any."""
    ignored = context.distribution.mpi_options.only_mpirun
    return (f"custom_mpi_options without effect, as no mpirun runs: {', '.join(ignored)}",) if ignored else ()


def _without_gpus(context: LaunchContext) -> dict[str, str]:
    """Return variables that keep accelerate, which assumes CUDA with SMDDP, on the CPU; user settings win."""
    if context.host.resources.gpu_indices:
        return {}
    return {name: value for name, value in _ACCELERATE_ON_CPU.items() if name not in context.variables}


def _smddp_variables(context: LaunchContext) -> dict[str, str]:
    if len(context.peers) == 1:
        return {"SMDATAPARALLEL_USE_SINGLENODE": "1"}
    instance_type = platform_text(context.plan.hyperparameters, "sagemaker_instance_type")
    return {
        "SMDATAPARALLEL_USE_HOMOGENEOUS": "1",
        "SMDATAPARALLEL_SERVER_ADDR": context.master_address,
        "SMDATAPARALLEL_SERVER_PORT": _SERVER_PORT,
        "SAGEMAKER_INSTANCE_TYPE": instance_type or context.host.instance_type,
    }
