"""torch_distributed: torchrun's workers, started without torchrun, so that `host.keeper` knows each rank.

Not elastic, as on SageMaker: a rank that fails ends the job.
Source: sagemaker-training 5.1.4 `torch_distributed.TorchDistributedRunner`.
"""

from __future__ import annotations

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers.context import LaunchContext
from clary.agent.launchers.ranks import first_rank, rank_variables
from clary.base.errors import AgentError, Fault
from clary.contract.settings.entry_points import EntryKind


def build(context: LaunchContext) -> tuple[ProcessSpec, ...]:
    """Return one process per local rank.

    Raises: AgentError for an entry point that is not a Python script, which SageMaker refuses too.
    """
    entry_point = context.entry_point
    if entry_point is not None and entry_point.kind is not EntryKind.SCRIPT:
        raise AgentError(
            f"torch_distributed starts Python scripts only, and {entry_point.name} is a {entry_point.kind}: give a .py "
            "file in a source folder without setup.py.",
            fault=Fault.USER,
        )
    program = context.program()
    return tuple(
        context.process(
            program,
            additions={"NCCL_PROTO": "simple", **rank_variables(context, local_rank)},
            rank=first_rank(context) + local_rank,
            local_rank=local_rank,
        )
        for local_rank in range(context.host.processes_per_host)
    )
