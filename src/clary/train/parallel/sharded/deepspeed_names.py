"""DeepSpeed's attributes of parameters and optimizers, which scripts read with sharded data parallelism.

    parameter.ds_shape, .ds_numel     shape and size of the whole parameter, which is one NaN while it is not gathered
    parameter.ds_tensor, its .ds_numel  this rank's flat part of the parameter, which the optimizer updates
    fp32_partitioned_groups_flat      the parts in order, one tensor per group of the optimizer
    fp16_groups                       parameters by group
    ds_param_shard_group              the ranks whose parts form the whole parameter

Parameters that stay whole on every rank are also reported as cut into equal parts.
Source: amazon-sagemaker-examples, `gpt2/sdp_utils.py` and `gpt-j/sharded_data_parallel_checkpoint.py`, as callers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from clary.train.parallel.sharded.model import ShardedModel


def name_parts(model: ShardedModel) -> None:
    """Set the attributes on all parameters of a model; optimizer steps update the parts."""
    for flat in model.flats:
        for place, parameter in enumerate(flat.parameters):
            own = flat.slices[place].detach()
            if flat.groups is None:
                length = -(-own.numel() // model.groups.degree)
                begin = min(model.groups.segment * length, own.numel())
                own = own[begin : begin + length]
            shape = torch.Size(flat.layout.shapes[place])
            vars(own).update(ds_numel=own.numel(), ds_shape=own.shape)
            vars(parameter).update(ds_tensor=own, ds_shape=shape, ds_numel=shape.numel())


class Behind:
    """Parts in separate memory that act as one flat tensor; `narrow` returns views of the parts.

    Other attributes come from a copy of all parts in one tensor.
    """

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        self._parts = list(parts)

    def narrow(self, dim: int, start: int, length: int) -> torch.Tensor:
        """Return elements from `start` on: a view if they lie in one part, else a copy.

        Args:
            dim: 0 or -1: the tensor is flat.
            start: first element, counted across all parts.
            length: number of elements.

        Raises: IndexError if there are fewer elements.
        """
        if dim not in (0, -1) or start < 0 or length < 0 or start + length > self.numel():
            raise IndexError(f"narrow({dim}, {start}, {length}) of a flat tensor of {self.numel()} elements")
        begin = 0
        for part in self._parts:
            if begin <= start and start + length <= begin + part.numel():
                return part[start - begin : start - begin + length]
            begin += part.numel()
        return self.tensor()[start : start + length]

    def numel(self) -> int:
        """Return the number of elements."""
        return sum(part.numel() for part in self._parts)

    def tensor(self) -> torch.Tensor:
        """Return a copy of all parts in one flat tensor."""
        return torch.cat(self._parts) if self._parts else torch.zeros(0)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], _: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        def made(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(made(one) for one in value)
            return value.tensor() if isinstance(value, cls) else value

        return function(*map(made, args), **{name: made(value) for name, value in (kwargs or {}).items()})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.tensor(), name)

    def __len__(self) -> int:
        return self.numel()

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.tensor()[index]


def optimizer_names(model: ShardedModel, groups: Sequence[Sequence[torch.nn.Parameter]]) -> dict[str, Any]:
    """Return the attributes that scripts read on an optimizer, by name.

    Args:
        groups: the model's parameters, by group of the optimizer.
    """
    return {
        "ds_param_shard_group": model.groups.sharding,
        "fp16_groups": [list(group) for group in groups],
        "fp32_partitioned_groups_flat": [Behind([vars(one)["ds_tensor"] for one in group]) for group in groups],
    }
