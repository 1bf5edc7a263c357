"""`save_model_checkpoint` and `load_model_checkpoint`: a model, its optimizer and its scheduler in one call.

Where: scripts of the first releases of SMP v2 call these; later scripts call `async_save`, which has the same layout,
so either kind of script reads the other's checkpoints.
Source: aws/amazon-sagemaker-examples of December 2023 to June 2024, model_parallel_v2/shared-scripts/checkpoints.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

from clary.train.parallel.fsdp.checkpoint.loading import load
from clary.train.parallel.fsdp.checkpoint.saving import save
from clary.train.parallel.fsdp.checkpoint.sharded_optimizer import load_optimizer_shards
from clary.train.parallel.fsdp.checkpoint.storage import make_reader
from clary.train.parallel.fsdp.logs import get_logger
from clary.train.parallel.fsdp.state import state

EXPORT_KEY_MODEL = "model"
EXPORT_KEY_OPTIMIZER = "optimizer"
EXPORT_KEY_SCHEDULER = "scheduler"
EXPORT_KEY_IDENTITY = "identity"  # key of the extra values in the result of `load_model_checkpoint`
_OWN = (EXPORT_KEY_MODEL, EXPORT_KEY_OPTIMIZER, EXPORT_KEY_SCHEDULER)


def save_model_checkpoint(
    model: nn.Module,
    state_dict_type: StateDictType,
    folder: str | os.PathLike[str],
    sharding_strategy: Any = None,
    pg_metadata: tuple[Any, int, bool] | None = None,
    log: bool = False,
    optimizer: Any = None,
    scheduler: Any = None,
    extra_exports: Mapping[str, Any] | None = None,
) -> None:
    """Save a sharded state, each slice in its own subfolder. Every rank calls it.

    Args:
        sharding_strategy: accepted but unused; the model has its own strategy.
        pg_metadata: the group of ranks that save together, the rank that plans, and whether this rank saves; None is
            the model's group, its first rank, and the first of the ranks that hold the same shards.
        log: log the path of the checkpoint.
        extra_exports: further values to save, by name; the names of model, optimizer and scheduler are reserved.

    Raises: ValueError for a state that is not sharded, or a reserved name; CheckpointError on all ranks, naming the
        failed ranks.
    """
    del sharding_strategy
    _check("save_model_checkpoint", state_dict_type, extra_exports)
    saved: dict[str, Any] = {}
    with FullyShardedDataParallel.state_dict_type(model, state_dict_type):
        saved[EXPORT_KEY_MODEL] = model.state_dict()
        if optimizer is not None:
            saved[EXPORT_KEY_OPTIMIZER] = FullyShardedDataParallel.optim_state_dict(model, optimizer)
    if scheduler is not None:
        saved[EXPORT_KEY_SCHEDULER] = scheduler.state_dict()
    group, coordinator, is_saving = pg_metadata or _groups(model)
    if is_saving:
        at = folder_of_slice(folder)
        save(saved | dict(extra_exports or {}), checkpoint_id=at, process_group=group, coordinator_rank=coordinator)
        if log:
            get_logger().info("saved to %s", at)


def load_model_checkpoint(
    model: nn.Module,
    state_dict_type: StateDictType,
    folder: str | os.PathLike[str],
    sharding_strategy: Any = None,
    pg_metadata: tuple[Any, int, bool] | None = None,
    log: bool = False,
    optimizer: Any = None,
    scheduler: Any = None,
    extra_imports: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Load a checkpoint of `save_model_checkpoint`, in place. Every rank calls it, with equal arguments.

    Args:
        extra_imports: current values of the saved `extra_exports`, to be replaced, by name.

    Returns: the given model, optimizer and scheduler under EXPORT_KEY_MODEL and so on, and a dict of the loaded extra
        values under EXPORT_KEY_IDENTITY.
    Raises: ValueError as `save_model_checkpoint`; torch's CheckpointException on all ranks, naming the failed ranks.
    """
    del sharding_strategy
    _check("load_model_checkpoint", state_dict_type, extra_imports)
    group, _, _ = pg_metadata or _groups(model)
    at, own = folder_of_slice(folder), dict(extra_imports or {})
    with FullyShardedDataParallel.state_dict_type(model, state_dict_type):
        found: dict[str, Any] = {EXPORT_KEY_MODEL: model.state_dict(), **own}
        if scheduler is not None:
            found[EXPORT_KEY_SCHEDULER] = scheduler.state_dict()
        load(found, checkpoint_id=at, process_group=group)
        model.load_state_dict(found[EXPORT_KEY_MODEL])
        if optimizer is not None:
            moments = load_optimizer_shards(
                found[EXPORT_KEY_MODEL],
                EXPORT_KEY_OPTIMIZER,
                make_reader(at, s3_region=None, s3client_config=None),
                process_group=group,
            )
            flat = FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, moments[EXPORT_KEY_OPTIMIZER])
            optimizer.load_state_dict(flat)
    if scheduler is not None:
        scheduler.load_state_dict(found[EXPORT_KEY_SCHEDULER])
    if log:
        get_logger().info("loaded from %s", at)
    return {
        EXPORT_KEY_MODEL: model,
        EXPORT_KEY_OPTIMIZER: optimizer,
        EXPORT_KEY_SCHEDULER: scheduler,
        EXPORT_KEY_IDENTITY: {key: found[key] for key in own},
    }


def folder_of_slice(folder: str | os.PathLike[str]) -> str:
    """Return the subfolder of this rank's slice in a checkpoint's folder, or the folder itself if nothing is cut."""
    at = os.fspath(folder)
    if state.tp_size > 1:
        at = f"{at}/tp{state.tp_size}-{state.tp_rank}"
    return f"{at}/ep{state.ep_size}-{state.ep_rank}" if state.ep_size > 1 else at


def register_tp_processing_pre_comm_hook(*_: Any, **__: Any) -> None:
    """Log that this call has no effect: gradients of parameters that all tensor ranks hold are already equal."""
    get_logger().info(
        "register_tp_processing_pre_comm_hook has no effect here: tensor ranks compute alike gradients of what they "
        "hold alike"
    )


def _groups(model: Any) -> tuple[Any, int, bool]:
    group = model.process_group
    return group, min(dist.get_process_group_ranks(group)), state.ranker.get_rep_rank(dist.get_rank()) == 0


def _check(call: str, state_dict_type: StateDictType, extras: Mapping[str, Any] | None) -> None:
    if state_dict_type is not StateDictType.SHARDED_STATE_DICT:
        raise ValueError(
            f"{call}: state_dict_type is {state_dict_type}; expected StateDictType.SHARDED_STATE_DICT. Save full "
            "states by model.state_dict() in FullyShardedDataParallel.state_dict_type, and local ones in "
            "sm_state_dict_type"
        )
    if taken := [key for key in extras or {} if key in _OWN]:
        raise ValueError(
            f"{call}: the script's own values use the names {', '.join(taken)}, which are reserved for "
            "model, optimizer and scheduler"
        )
