"""One-time checks that models and step inputs are equal on all ranks.

Where: `DistributedModel` and its first step call the checks; `fsdp.mistakes` compares by `digest` too. Ranks that
differ would wait for each other, or train another model than intended. Keys are compared by `layout.agreement`.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from clary.train.parallel.arguments.argument_names import argument_names
from clary.train.parallel.layout.agreement import first_difference
from clary.train.parallel.layout.mesh import Along

if TYPE_CHECKING:
    from clary.train.parallel.groups import Groups
    from clary.train.parallel.runtime import Runtime

_MOST_BYTES = 1 << 20  # maximum number of bytes of a tensor that are compared
_LOG = logging.getLogger("clary.smp")


def check_models(module: torch.nn.Module, groups: Groups) -> None:
    """Check that all ranks have made the same model, before it is replaced or cut. All ranks call it.

    Raises: ValueError naming the first parameter or buffer that differs in shape, dtype or `requires_grad`.
    """
    facts = {name: _facts(one) for name, one in [*module.named_parameters(), *module.named_buffers()]}
    digests = groups.allgather(hashlib.sha256(repr(facts).encode()).hexdigest(), Along.WORLD)
    if len(set(digests)) == 1:
        return
    told = groups.allgather(facts, Along.WORLD)
    rank, name = first_difference(told) or (digests.index(next(one for one in digests if one != digests[0])), "")
    raise ValueError(
        f"smp.DistributedModel: the model of rank {rank} differs from that of rank 0: "
        f"{name or 'the order'} is {told[rank].get(name, 'not there' if name else 'another')} on the "
        f"former and {told[0].get(name, 'not there' if name else 'another')} on rank 0: make the same "
        "model on all ranks, with the same parameters trained"
    )


def check_inputs(
    function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any], runtime: Runtime
) -> None:
    """Check that ranks which work on one batch were given the same inputs. All ranks call it.

    Differences within a pipeline are only logged: a script may load data only on the pipeline's first rank.

    Args:
        function: the step's function.
        arguments: positional arguments of the step's call.
        keywords: keyword arguments of the step's call.

    Raises: ValueError naming the argument that differs within a tensor group.
    """
    configuration = runtime.configuration
    shares_batch = configuration.tensor_parallel_degree > 1 and configuration.prescaled_batch
    if not shares_batch and configuration.partitions == 1:
        return
    named = argument_names(function, arguments, set())
    own: dict[str, str] = {}
    for name, value in [*zip(named, arguments, strict=True), *keywords.items()]:
        own[name] = own.get(name, "") + digest(value)  # values of `*args` share one name
    if shares_batch and (found := first_difference(runtime.groups.allgather(own, Along.TP))) is not None:
        raise ValueError(
            f"smp.step: {found[1]} of tensor rank {found[0]} differs from that of tensor rank 0, and with "
            "prescaled_batch the ranks of a tensor group work on one batch: load data by smp.rdp_rank() "
            "and smp.rdp_size(), or set prescaled_batch to false and load them by smp.dp_rank() and "
            "smp.dp_size()"
        )
    if (
        configuration.partitions > 1
        and (found := first_difference(runtime.groups.allgather(own, Along.PP))) is not None
        and runtime.pipeline_rank == 0
    ):
        _LOG.warning(
            "smp.step: %s of pipeline rank %d is another than that of pipeline rank 0, which alone is used: ranks of a "
            "pipeline work on one batch, so load data by smp.dp_rank() and smp.dp_size(), not by smp.rank()",
            found[1],
            found[0],
        )


def tell_own_parts(parts: Mapping[str, torch.nn.Parameter], runtime: Runtime) -> None:
    """Log the first of a program's own parameters in distributed modules that differs between tensor ranks.

    All ranks call it, before the first step with `prescaled_batch`. Differences are no error, since the program may
    have cut the parameter itself ([Note: a program's own parts] of `tensor.module`).

    Args:
        parts: parameters by name; the same names on all ranks of a tensor group.
    """
    if not parts:
        return
    own = {name: digest(parameter.detach()) for name, parameter in parts.items()}
    found = first_difference(runtime.groups.allgather(own, Along.TP))
    if found is not None and runtime.groups.group_rank(Along.TP) == 0:
        _LOG.warning(
            "smp.step: %s of tensor rank %d is another than that of tensor rank 0; it lies in a distributed module of "
            "the program's own and is taken for a slice that the program has cut. If it is whole, seed the ranks "
            "alike or load weights; add_parameter of smp.nn.DistributedModule makes slices that are known as such",
            found[1],
            found[0],
        )


def digest(value: Any) -> str:
    """Return a digest of the tensors in an argument: their shapes, dtypes and first values."""
    found = hashlib.sha256()
    for tensor in _tensors(value):
        found.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        found.update(_bytes_of(tensor))
    return found.hexdigest()


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the first bytes of a tensor's values, as they lie in memory; empty without memory."""
    if tensor.is_meta or tensor.is_sparse:
        return b""
    count = max(_MOST_BYTES // max(tensor.element_size(), 1), 1)
    held = tensor.detach().reshape(-1)[:count].cpu().contiguous()
    return ctypes.string_at(held.data_ptr(), held.numel() * held.element_size())


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _facts(tensor: torch.Tensor) -> str:
    if torch.nn.parameter.is_lazy(tensor):
        return "not sized yet"
    trained = ", trained" if tensor.requires_grad else ""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}{trained}"
