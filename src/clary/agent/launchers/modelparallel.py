"""smdistributed.modelparallel (SMP v1): mpi with the additions of its launcher.

`mp_parameters` reach the program as `--mp_parameters` and as SM_HP_MP_PARAMETERS; the environment has both already.
Source: sagemaker-training 5.1.4 `mpi._modelparallel_environment_command`.
"""

from __future__ import annotations

from collections.abc import Mapping

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers import mpi
from clary.agent.launchers.context import LaunchContext

_NCCL: Mapping[str, str] = {"NCCL_PROTO": "simple", "NCCL_ALGO": "ring"}


def build(context: LaunchContext) -> tuple[ProcessSpec, ...]:
    """Return the processes of this host."""
    return mpi.build(context, additions=_NCCL)


def notes(context: LaunchContext) -> tuple[str, ...]:
    """Return the remarks of the mpi launcher."""
    return mpi.notes(context)
