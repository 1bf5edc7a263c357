"""Broadcasts and gathers of parameters, optimizers and objects."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import asynchronous as ops

from clary.train.horovod import world


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Overwrite the tensors of all ranks with the tensors of one rank.

    Args:
        params: a `state_dict`, or a list or iterator of parameters or of (name, parameter) pairs.
        root_rank: rank that sends.

    Raises: ValueError for anything else.
    """
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, torch.Tensor) or not hasattr(params, "__iter__"):
        raise ValueError(f"invalid params of type: {type(params)}")
    else:
        pairs = [one if isinstance(one, tuple) else (None, one) for one in params]
    waiting = []
    for name, tensor in pairs:
        if not isinstance(tensor, torch.Tensor):
            continue  # the result of a module's get_extra_state
        whole = tensor.detach().contiguous()
        waiting.append((ops.broadcast_async_(whole, root_rank, name), whole, tensor))
    for handle, whole, tensor in waiting:
        ops.synchronize(handle)
        if whole.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(whole)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Overwrite the state and options of all ranks' optimizers with the state and options of one rank.

    If the optimizer of that rank is new, all ranks get an empty state. Parameters of a new optimizer that have no
    gradients get gradients of zeros, as with Horovod.

    Args:
        optimizer: an optimizer of torch, or a DistributedOptimizer.
        root_rank: rank that sends.
        model: has no effect.
    """
    if not optimizer.state_dict()["state"]:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)
    tensors: list[torch.Tensor] = []
    skeleton = _take_apart(optimizer.state_dict(), tensors) if world.rank() == root_rank else None
    skeleton, shapes = broadcast_object(
        (skeleton, [(tuple(tensor.shape), tensor.dtype, str(tensor.device)) for tensor in tensors]),
        root_rank,
        name="optimizer_state",
    )
    if world.rank() != root_rank:
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype, _ in shapes]
    sent = [tensor.detach().cpu().contiguous() for tensor in tensors]
    for handle in [
        ops.broadcast_async_(tensor, root_rank, f"optimizer_state.{index}") for index, tensor in enumerate(sent)
    ]:
        ops.synchronize(handle)
    if world.rank() != root_rank:
        optimizer.load_state_dict(_put_together(skeleton, sent))


class _Place:
    """Placeholder for a tensor in a value that was taken apart."""

    def __init__(self, index: int) -> None:
        self.index = index


def _take_apart(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return the value with a `_Place` for each of its tensors; append these tensors to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Place(len(tensors) - 1)
    if isinstance(value, Mapping):
        return {key: _take_apart(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_apart(item, tensors) for item in value)
    return value


def _put_together(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: _put_together(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_together(item, tensors) for item in value)
    return value


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the object of one rank on all ranks; it is sent as a pickle.

    Args:
        obj: the object on the root; it has no effect on other ranks.
        root_rank: rank that sends, among all ranks.
        name: equal on all ranks.
        process_set: ranks that take part.
    """
    base = name or "broadcast_object"
    packed = _pack(obj) if world.rank() == root_rank else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([len(packed)])
    ops.synchronize(ops.broadcast_async_(length, root_rank, f"{base}.sz", process_set))
    if world.rank() != root_rank:
        packed = torch.empty(int(length), dtype=torch.uint8)
    ops.synchronize(ops.broadcast_async_(packed, root_rank, f"{base}.t", process_set))
    return obj if world.rank() == root_rank else pickle.loads(packed.numpy().tobytes())  # noqa: S301 - of this job's ranks


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the objects of all ranks, in rank order; they are sent as pickles.

    Args: as `broadcast_object`.
    """
    base = name or "allgather_object"
    packed = _pack(obj)
    lengths = ops.synchronize(ops.allgather_async(torch.tensor([len(packed)]), f"{base}.sz", process_set)).tolist()
    together = ops.synchronize(ops.allgather_async(packed, f"{base}.t", process_set))
    return [pickle.loads(part.numpy().tobytes()) for part in together.split(lengths)]  # noqa: S301 - as above


def _pack(obj: Any) -> torch.Tensor:
    """Return an object's pickle; cloudpickle, if installed, also pickles functions and classes of `__main__`."""
    try:
        import cloudpickle as writer
    except ImportError:
        writer = pickle
    stream = io.BytesIO()
    writer.dump(obj, stream)
    return torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
