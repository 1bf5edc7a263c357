"""Numbers of an optimizer's parameters, as its states have them: by parameter, and by name in the model.

Where: `DistributedOptimizer` has one; scripts that keep masters of their own put states together by it.
Source: amazon-sagemaker-examples, `gpt-j/fp16/fp16.py` and `fp16util.py` under
`training/distributed_training/pytorch/model_parallel`, as callers.
"""

from __future__ import annotations

from typing import Any

import torch

from clary.train.parallel.placed_model import PlacedModel


class Numbering:
    """Numbers parameters through all groups, as torch does.

    Args:
        optimizer: with the model's own parameters still. Later it may have masters, in the same order.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: PlacedModel) -> None:
        self._optimizer = optimizer
        self._model = model
        self._own = _all_of(optimizer)

    def by_id(self) -> dict[int, int]:
        """Return numbers by `id` of parameters: of the model's, and of masters that are stepped for them."""
        found = {id(one): number for number, one in enumerate(self._own)}
        now = _all_of(self._optimizer)
        if len(now) == len(self._own):  # else it steps shards, which have no numbers
            found |= {id(one): number for number, one in enumerate(now)}
        return found

    def by_name(self) -> dict[str, int]:
        """Return numbers by names of `named_parameters`."""
        numbers = self.by_id()
        return {name: numbers[id(one)] for name, one in self._model.named_parameters() if id(one) in numbers}

    def local(self) -> dict[int, torch.nn.Parameter]:
        """Return this rank's parameters by their numbers."""
        numbers = self.by_id()
        return {numbers[id(one)]: one for one in self._model.local_parameters() if id(one) in numbers}

    def axes(self) -> dict[int, int | None]:
        """Return, by `id` of what is stepped, the dimension along which tensor ranks hold slices; None for whole."""
        pieces = [getattr(one, "tensor_slice", None) for one in self._own]
        axes = [None if piece is None else int(piece.dimension) for piece in pieces]
        return {key: axes[number] for key, number in self.by_id().items()}


def _all_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
