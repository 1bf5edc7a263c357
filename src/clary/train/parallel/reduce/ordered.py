"""Gradients added up in one order, whenever they come: the last bits of sums are the same in every run.

Where: a pipeline serves microbatches as messages arrive. With `deterministic_server` every backward pass gives its
gradients here; at the end of the step they are added in the order of microbatches, callers and calls. Until then all of
them are kept, which takes as much memory as the microbatches of this rank have gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

Key = tuple[int, int, int]  # microbatch, rank that asked (-1: the step's own function), number of its call

_key: ContextVar[Key | None] = ContextVar("clary_gradient_key", default=None)


@contextmanager
def backward_of(key: Key) -> Iterator[None]:
    """Say which pass gives the gradients that come in here."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


class OrderedSums:
    """Sums of the gradients of one step.

    Args:
        parameters: those that are trained; their gradients are taken away as they come.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._before: list[torch.Tensor | None] = []
        self._came: dict[int, list[tuple[Key, torch.Tensor]]] = {}
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._taking(place))
            for place, parameter in enumerate(self._parameters)
        ]

    def remove(self) -> None:
        """Take no gradients any more."""
        for handle in self._handles:
            handle.remove()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Collect the gradients of this block, and add them to the earlier ones unless the block fails."""
        self._before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        try:
            yield
            self._add()
        finally:
            for parameter, before in zip(self._parameters, self._before, strict=True):
                if parameter.grad is None:
                    parameter.grad = before
            self._came.clear()
            self._before = []

    def _taking(self, place: int) -> Callable[[torch.Tensor], None]:
        def take(parameter: torch.Tensor) -> None:
            key = _key.get()
            if key is None or parameter.grad is None:  # outside of steps: nothing is kept
                return
            self._came.setdefault(place, []).append((key, parameter.grad))
            parameter.grad = None

        return take

    @torch.no_grad()
    def _add(self) -> None:
        for place, came in self._came.items():
            came.sort(key=lambda one: one[0])  # stable: what one pass gives stays in its order
            total = self._before[place]
            for _, grad in came:
                total = grad if total is None else total.add_(grad)
            self._parameters[place].grad = total
