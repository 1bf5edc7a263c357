"""`import smdistributed.modelparallel.torch as smp`: SMP v1 on torch.

The code is in `clary.train.parallel`; this package has the names that scripts import.

[Note: two meanings] `step` and `state` are names of modules, too. Python makes a module an attribute of its package
when the module is first loaded. This file loads the modules first: the names that it binds afterwards stay, even if
scripts import the modules later.

[Note: torch first] As its last step, the import of torch patches trainers of other libraries; for that it imports the
modules below. So torch is imported first: no module below may be partly imported at that time.
"""

import torch  # noqa: F401 - see [Note: torch first]

from clary.train.parallel.marks import mark as set_partition
from clary.train.parallel.marks import marking as partition
from clary.train.parallel.memory.checkpointing import set_activation_checkpointing
from clary.train.parallel.memory.delayed import delay_param_initialization
from clary.train.parallel.memory.delayed import delay_param_initialization as delayed_parameter_initialization
from clary.train.parallel.microbatches import StepOutput
from clary.train.parallel.model import DistributedModel
from clary.train.parallel.optimizer import DistributedOptimizer
from clary.train.parallel.sharded.units import register_parameter
from clary.train.parallel.tensor.registry import (
    set_tensor_parallelism,
    tensor_parallelism,
    tp_register,
    tp_register_with_module,
)

from . import amp, core, exceptions, model, nn, optimizers, patches, state_mod, utils
from .checkpoints import load, resume_from_checkpoint, save, save_checkpoint
from .communication import (
    DP_GROUP,
    MP_GROUP,
    PP_GROUP,
    RDP_GROUP,
    TP_GROUP,
    WORLD,
    CommGroup,
    RankType,
    allgather,
    barrier,
    broadcast,
    dp_barrier,
    hvd_average_grads,
    mp_barrier,
    recv_from,
    send,
)
from .creation import model_creation
from .session import (
    dp_rank,
    dp_size,
    get_dp_group,
    get_dp_process_group,
    get_mp_group,
    get_mp_process_group,
    get_pp_group,
    get_pp_process_group,
    get_rdp_group,
    get_rdp_process_group,
    get_tp_group,
    get_tp_process_group,
    get_world_process_group,
    init,
    is_initialized,
    is_tracing,
    local_rank,
    local_size,
    mp_rank,
    mp_size,
    pp_rank,
    pp_size,
    rank,
    rdp_rank,
    rdp_size,
    shutdown,
    size,
    tp_rank,
    tp_size,
)
from .state import state  # see [Note: two meanings]
from .step import step

__all__ = [
    "DP_GROUP",
    "MP_GROUP",
    "PP_GROUP",
    "RDP_GROUP",
    "TP_GROUP",
    "WORLD",
    "CommGroup",
    "DistributedModel",
    "DistributedOptimizer",
    "RankType",
    "StepOutput",
    "allgather",
    "amp",
    "barrier",
    "broadcast",
    "core",
    "delay_param_initialization",
    "delayed_parameter_initialization",
    "dp_barrier",
    "dp_rank",
    "dp_size",
    "exceptions",
    "get_dp_group",
    "get_dp_process_group",
    "get_mp_group",
    "get_mp_process_group",
    "get_pp_group",
    "get_pp_process_group",
    "get_rdp_group",
    "get_rdp_process_group",
    "get_tp_group",
    "get_tp_process_group",
    "get_world_process_group",
    "hvd_average_grads",
    "init",
    "is_initialized",
    "is_tracing",
    "load",
    "local_rank",
    "local_size",
    "model",
    "model_creation",
    "mp_barrier",
    "mp_rank",
    "mp_size",
    "nn",
    "optimizers",
    "partition",
    "patches",
    "pp_rank",
    "pp_size",
    "rank",
    "rdp_rank",
    "rdp_size",
    "recv_from",
    "register_parameter",
    "resume_from_checkpoint",
    "save",
    "save_checkpoint",
    "send",
    "set_activation_checkpointing",
    "set_partition",
    "set_tensor_parallelism",
    "shutdown",
    "size",
    "state",
    "state_mod",
    "step",
    "tensor_parallelism",
    "tp_rank",
    "tp_register",
    "tp_register_with_module",
    "tp_size",
    "utils",
]
