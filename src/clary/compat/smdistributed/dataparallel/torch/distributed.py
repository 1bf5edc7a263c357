"""The module `dist` of SMDDP 1.3 and before, over torch.distributed with the backend `smddp`.

The only group holds all ranks. An asynchronous collective returns a handle with `wait()`, any other collective None.
Source: sagemaker-python-sdk `doc/api/training/sdp_versions/v1.2.x/smd_data_parallel_pytorch.rst`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed

from clary.train.collective.adapters.torch import registration

_log = logging.getLogger("clary.smddp")
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # set by launchers of ranks


class ReduceOp:
    """Operations that reduce the ranks' values, element by element."""

    SUM = torch.distributed.ReduceOp.SUM
    AVERAGE = torch.distributed.ReduceOp.AVG
    MIN = torch.distributed.ReduceOp.MIN
    MAX = torch.distributed.ReduceOp.MAX


class group:
    """Groups of ranks; WORLD is the only group."""

    WORLD = "WORLD"


def is_available() -> bool:
    """Whether this process was started as a rank."""
    return torch.distributed.is_available() and all(name in os.environ for name in _RANK_VARIABLES)


def init_process_group(*args: object, **kwargs: object) -> None:
    """Join the group of all ranks; call it before any operation of this module. Arguments have no effect.

    A process that has joined a group already stays in that group, which the log says.

    Raises: RuntimeError if this process was not started as a rank.
    """
    if is_initialized():
        _log.info(
            "smdistributed.dataparallel: this process has joined already, with the backend %s; init_process_group "
            "changes nothing",
            torch.distributed.get_backend(),
        )
        return
    if not is_available():
        missing = ", ".join(name for name in _RANK_VARIABLES if name not in os.environ)
        raise RuntimeError(
            f"smdistributed.dataparallel: this process was not started as a rank, {missing or 'torch.distributed'} "
            'is missing. Start it with distribution={"smdistributed": {"dataparallel": {"enabled": True}}} or torchrun.'
        )
    registration.register()
    torch.distributed.init_process_group("smddp")


def destroy_process_group(group: object = group.WORLD) -> None:
    """Leave the group of all ranks; afterwards, `init_process_group` joins it again.

    Raises: ValueError for another group than WORLD, or without a group.
    """
    check_group(group)
    torch.distributed.destroy_process_group()


def is_initialized() -> bool:
    """Whether `init_process_group` was called."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def get_world_size(group: object = group.WORLD) -> int:
    """Return the number of ranks; before `init_process_group`, the number that the launcher has set.

    Raises: ValueError for another group than WORLD, or if there is neither a group nor a launcher.
    """
    check_group(group)
    told = None if is_initialized() else _launchers_number("WORLD_SIZE")
    return int(torch.distributed.get_world_size()) if told is None else told


def get_rank(group: object = group.WORLD) -> int:
    """Return this process's rank among all; before `init_process_group`, the rank that the launcher has set.

    Raises: ValueError for another group than WORLD, or if there is neither a group nor a launcher.
    """
    check_group(group)
    told = None if is_initialized() else _launchers_number("RANK")
    return int(torch.distributed.get_rank()) if told is None else told


def get_local_rank() -> int:
    """Return this process's rank on its host. Raises: RuntimeError if no launcher has set it."""
    told = _launchers_number("LOCAL_RANK")
    if told is None:
        raise RuntimeError(
            "smdistributed.dataparallel: this process was not started as a rank, LOCAL_RANK is missing or no number. "
            'Start it with distribution={"smdistributed": {"dataparallel": {"enabled": True}}} or torchrun.'
        )
    return told


def all_reduce(
    tensor: torch.Tensor, op: Any = ReduceOp.SUM, group: object = group.WORLD, async_op: bool = False
) -> Any:
    """Reduce `tensor` of all ranks in place.

    Args:
        tensor: of the same shape and dtype on all ranks.
        op: one of `ReduceOp`.
        async_op: return a handle with `wait()` at once, instead of None after the operation.

    Raises: ValueError for another group than WORLD.
    """
    check_group(group)
    return torch.distributed.all_reduce(tensor, op=op, async_op=async_op)


def reduce(
    tensor: torch.Tensor, dst: int, op: Any = ReduceOp.SUM, group: object = group.WORLD, async_op: bool = False
) -> Any:
    """Reduce `tensor` of all ranks on rank `dst`, in place; the other ranks' tensors may be overwritten.

    Args:
        tensor: of the same shape and dtype on all ranks.
        dst: rank that gets the result.
        op: one of `ReduceOp`.
        async_op: return a handle with `wait()` at once, instead of None after the operation.

    Raises: ValueError for another group than WORLD.
    """
    check_group(group)
    return torch.distributed.reduce(tensor, dst, op=op, async_op=async_op)


def broadcast(tensor: torch.Tensor, src: int = 0, group: object = group.WORLD, async_op: bool = False) -> Any:
    """Copy `tensor` of rank `src` to all ranks.

    Args:
        tensor: sent on rank `src`, overwritten on the other ranks; of the same shape and dtype on all ranks.
        async_op: return a handle with `wait()` at once, instead of None after the operation.

    Raises: ValueError for another group than WORLD.
    """
    check_group(group)
    return torch.distributed.broadcast(tensor, src=src, async_op=async_op)


def all_gather(
    tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: object = group.WORLD, async_op: bool = False
) -> Any:
    """Gather `tensor` of every rank into `tensor_list`, which has one tensor of the same shape for each rank.

    Args:
        tensor_list: tensors to overwrite, in the order of ranks.
        async_op: return a handle with `wait()` at once, instead of None after the operation.

    Raises: ValueError for another group than WORLD.
    """
    check_group(group)
    return torch.distributed.all_gather(tensor_list, tensor, async_op=async_op)


def all_to_all_single(
    output_t: torch.Tensor,
    input_t: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: object = group.WORLD,
    async_op: bool = False,
) -> Any:
    """Send each rank a part of `input_t`, split along its first dimension; receive the ranks' parts in `output_t`.

    Args:
        output_t: [rows received, ...], overwritten with the parts in the order of ranks.
        input_t: [rows sent, ...].
        output_split_sizes: rows from each rank; None stands for equal parts.
        input_split_sizes: rows for each rank; None stands for equal parts.
        async_op: return a handle with `wait()` at once, instead of None after the operation.

    Raises: ValueError for another group than WORLD.
    """
    check_group(group)
    return torch.distributed.all_to_all_single(
        output_t,
        input_t,
        None if output_split_sizes is None else list(output_split_sizes),
        None if input_split_sizes is None else list(input_split_sizes),
        async_op=async_op,
    )


def barrier(group: object = group.WORLD, async_op: bool = False) -> Any:
    """Wait until every rank has called this function."""
    check_group(group)
    return torch.distributed.barrier(async_op=async_op)


def check_group(group: object) -> None:
    """Check that a group is `group.WORLD` of this module or of torch.distributed.

    Raises: ValueError for another group, and for None.
    """
    is_default = is_initialized() and group is torch.distributed.group.WORLD
    if group != _WORLD and not is_default:
        raise ValueError(
            f"group {group!r}: smdistributed.dataparallel knows group.WORLD only; for others use torch.distributed"
        )


def _launchers_number(name: str) -> int | None:
    """Return the number in a variable of ranks; None if it is missing or no number."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


_WORLD = group.WORLD
