"""Broadcasts and gathers of parameters and objects."""

from __future__ import annotations

import pickle
import types
from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np
from horovod.mxnet.mpi_ops import allgather, broadcast_, rank, size
from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Overwrite the parameters of all ranks with the parameters of one rank.

    A parameter whose shape is not known yet is overwritten once it is initialised.

    Args:
        params: a ParameterDict, or a dict of parameters or arrays.
        root_rank: rank that sends.
        prefix: prefix of names; a program that calls the function several times passes different prefixes.

    Raises: ValueError for anything else.
    """
    if not isinstance(params, Mapping | ParameterDict):
        raise ValueError(f"invalid params of type: {type(params)}")
    if size() == 1:
        return
    sent = []
    for name, parameter in sorted(params.items()):
        full = f"{prefix or ''}{name}"
        try:
            sent.append((full, parameter.data() if isinstance(parameter, Parameter) else parameter))
        except DeferredInitializationError:
            _broadcast_when_there(parameter, root_rank, full)
    for name, tensor in sent:
        broadcast_(tensor, root_rank, name)


def _broadcast_when_there(parameter: Parameter, root_rank: int, name: str) -> None:
    first = parameter._init_impl

    def init_and_broadcast(self: Parameter, *args: Any, **kwargs: Any) -> None:
        first(*args, **kwargs)
        broadcast_(self.data(), root_rank, name)

    parameter._init_impl = types.MethodType(init_and_broadcast, parameter)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the object of one rank on all ranks; it is sent as a pickle.

    Args:
        obj: the object on the root; on other ranks only its class matters, for the default name.
        root_rank: rank that sends.
        name: equal on all ranks; None takes the name of the object's class.
    """
    base = name or type(obj).__name__
    packed = _pack(obj) if rank() == root_rank else None
    length = mx.nd.array([0 if packed is None else packed.size], dtype="int64")
    broadcast_(length, root_rank, f"{base}.sz")
    if packed is None:
        packed = mx.nd.empty((int(length.asscalar()),), dtype="uint8")
    broadcast_(packed, root_rank, f"{base}.t")
    return obj if rank() == root_rank else pickle.loads(packed.asnumpy().tobytes())  # noqa: S301 - of this job's ranks


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all ranks, in rank order; they are sent as pickles.

    Args: as `broadcast_object`.
    """
    base = name or type(obj).__name__
    packed = _pack(obj)
    lengths = allgather(mx.nd.array([packed.size], dtype="int64"), f"{base}.sz").asnumpy()
    together = allgather(packed, f"{base}.t").asnumpy()
    parts = np.split(together, np.cumsum(lengths)[:-1])
    return [pickle.loads(part.tobytes()) for part in parts]  # noqa: S301 - as above


def _pack(obj: Any) -> mx.nd.NDArray:
    """Return an object's pickle; cloudpickle, if installed, also pickles functions and classes of `__main__`."""
    try:
        import cloudpickle as writer
    except ImportError:
        writer = pickle
    return mx.nd.array(np.frombuffer(writer.dumps(obj), np.uint8), dtype="uint8")
