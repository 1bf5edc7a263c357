"""Wrappers through which scripts of SMP 1.6 to 1.10 reach the model: the original had layers around it.

    model.module.module.transformer           with a DistributedModel
    model.module.module.module.transformer    with fp16

In this library no layer lies between a DistributedModel and its model. Newer scripts call `model.get_module()`.
Source: amazon-sagemaker-examples of 2022, `train_gpt_simple.py` and `train_gptj_smp_tensor_parallel_script.py` under
`training/distributed_training/pytorch/model_parallel`, as callers.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

_DEPTH = 2  # largest number of layers that scripts unwrap


class LayerAround:
    """Proxy of a model; its `module` is the model, or another proxy.

    It is not registered as a module, so names and states are the model's. A program that unwraps `module` until it is
    missing, as transformers does, reaches the model itself.
    """

    __slots__ = ("_depth", "_model")

    def __init__(self, model: torch.nn.Module, depth: int = _DEPTH) -> None:
        object.__setattr__(self, "_model", model)
        object.__setattr__(self, "_depth", depth)

    @property
    def module(self) -> Any:
        """The model, or the next layer around it."""
        return self._model if self._depth == 1 else LayerAround(self._model, self._depth - 1)

    @property  # type: ignore[misc]  # read by isinstance
    def __class__(self) -> Any:
        return type(self._model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._model, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self._model(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self._model[key]

    def __iter__(self) -> Any:
        return iter(self._model)

    def __len__(self) -> int:
        return len(self._model)

    def __bool__(self) -> bool:
        return True  # without this method Python calls `__len__`, which a model may lack

    def __eq__(self, other: object) -> bool:
        return bool(self._model == (other._model if type(other) is LayerAround else other))

    def __hash__(self) -> int:
        return hash(self._model)

    def __repr__(self) -> str:
        return repr(self._model)

    def __dir__(self) -> list[str]:
        return [*dir(self._model), "module"]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._model, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._model.__reduce_ex__(protocol)
