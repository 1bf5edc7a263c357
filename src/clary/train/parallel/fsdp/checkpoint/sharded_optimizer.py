"""`load_sharded_optimizer_state_dict` with a group of processes, as scripts of SMP call it.

Where: `additions` gives torch's function the argument `process_group`. Without it torch shards states over all ranks,
and ranks that hold different slices of a layer would read each other's states.

[Note: in place] Scripts import the function by name before they call `tsm.init`, so the function object itself is
patched: its code and its defaults. `remove` restores them.
"""

from __future__ import annotations

import types
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import optimizer as torch_optimizer
from torch.distributed.checkpoint.metadata import BytesStorageMetadata
from torch.distributed.checkpoint.optimizer import unflatten_state_dict

from clary.train.parallel.fsdp.checkpoint.sharded_state import empty_shards, slice_group
from clary.train.parallel.tensor.collectives import TensorGroup, reachable

State = dict[str, Any]

_originals: dict[str, Any] = {}  # torch's code and defaults, and a function with both


def install() -> None:
    """Add the argument to torch's function; a second call does nothing."""
    function = torch_optimizer.load_sharded_optimizer_state_dict
    if _originals or "process_group" in function.__code__.co_varnames:
        return
    original = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    _originals.update(code=function.__code__, defaults=function.__defaults__, function=original)
    function.__code__, function.__defaults__ = _with_group.__code__, _with_group.__defaults__


def remove() -> None:
    """Restore torch's function."""
    if _originals:
        function = torch_optimizer.load_sharded_optimizer_state_dict
        function.__code__, function.__defaults__ = _originals["code"], _originals["defaults"]
        _originals.clear()


def _with_group(
    model_state_dict: Any, optimizer_key: Any, storage_reader: Any, planner: Any = None, process_group: Any = None
) -> Any:
    """Replace torch's function; this code runs with the globals of torch's module."""
    # no start-up time: the globals of torch's module lack `load_optimizer_shards`
    from clary.train.parallel.fsdp.checkpoint.sharded_optimizer import load_optimizer_shards

    return load_optimizer_shards(model_state_dict, optimizer_key, storage_reader, planner, process_group)


@torch.no_grad()
def load_optimizer_shards(
    model_state: State, optimizer_key: str, reader: Any, planner: Any = None, process_group: Any = None
) -> State:
    """Load the sharded state of an optimizer from a checkpoint. Every rank of the group calls it.

    Args:
        model_state: the model's sharded state.
        optimizer_key: the key of the optimizer's state in the checkpoint.
        process_group: the model's group, over which tensors are sharded; None calls torch's function.

    Raises: torch's CheckpointException on all ranks of the group, naming the failed ranks.
    """
    if process_group is None:
        made: State = _originals["function"](model_state, optimizer_key, reader, planner)
        return made
    metadata = reader.read_metadata()
    group = slice_group(process_group)
    device = reachable(TensorGroup(group, dist.get_rank(group), dist.get_world_size(group)), torch.device("cpu"))
    state: State = {}
    for key, value in metadata.state_dict_metadata.items():
        if metadata.planner_data[key][0] != optimizer_key:
            continue
        if isinstance(value, BytesStorageMetadata):
            state[key] = "<bytes_io>"
        elif value.size.numel() == 1:
            state[key] = torch.empty(value.size, dtype=value.properties.dtype, device=device)
        else:
            state[key] = empty_shards(value.size, value.properties.dtype, device, group)
    dcp.load(state, storage_reader=reader, planner=planner, process_group=group)
    whole: State = unflatten_state_dict(state, metadata.planner_data)
    return whole
