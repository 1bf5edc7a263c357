"""Sums of gradients in a fixed order, regardless of their arrival, so that sums are bitwise equal in every run.

Where: a pipeline serves microbatches as messages arrive. With `deterministic_server`, `OrderedSums` collects the
gradients of every backward pass; at the end of the step it adds them in the order of microbatches, callers and calls.
Until then it keeps the gradients of all this rank's microbatches in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

Key = tuple[int, int, int]  # microbatch, calling rank (-1: the step's own function), number of the call

_key: ContextVar[Key | None] = ContextVar("clary_gradient_key", default=None)


@contextmanager
def backward_of(key: Key) -> Iterator[None]:
    """Set the key of the backward pass that runs in this block."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


class OrderedSums:
    """Sums of the gradients of one step.

    Args:
        parameters: the trained parameters, whose `grad` is moved away as soon as it is computed.
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
        """Stop collecting gradients."""
        for handle in self._handles:
            handle.remove()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Collect the gradients of this block, and add them to the earlier gradients unless the block fails."""
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
            if key is None or parameter.grad is None:  # outside of steps: not collected
                return
            self._came.setdefault(place, []).append((key, parameter.grad))
            parameter.grad = None

        return take

    @torch.no_grad()
    def _add(self) -> None:
        for place, came in self._came.items():
            came.sort(key=lambda one: one[0])  # stable: gradients of one pass keep their order
            total = self._before[place]
            for _, grad in came:
                total = grad if total is None else total.add_(grad)
            self._parameters[place].grad = total
