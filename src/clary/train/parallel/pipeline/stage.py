"""One stage of a model: the forward pass of a microbatch, and its backward pass, whole or in halves.

Where: `executor` calls these methods by its schedule, and transfers their inputs and outputs between stages.

A stage keeps the tensors for a microbatch's backward pass until this pass has ended; microbatches are independent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from clary.train.parallel.pipeline.halves import WeightHalf, backward_input

Tensors = tuple[torch.Tensor, ...]

_log = logging.getLogger(__name__)


@dataclass
class _Pass:
    """The inputs and outputs of one microbatch's forward pass."""

    inputs: Tensors
    outputs: Tensors
    half: WeightHalf | None = None


class Stage:
    """A module that maps tensors to a tensor or a tuple of tensors, as one stage of a pipeline.

    Autograd accumulates the gradients of all microbatches in the parameters' `grad`, so accumulation hooks see every
    microbatch.

    Args:
        index: index among the model's stages.
        name: name for error texts; the module's class if not given.
    """

    def __init__(self, module: nn.Module, index: int, *, name: str = "") -> None:
        self.module = module
        self.index = index
        self.name = name or type(module).__name__
        self._passes: dict[int, _Pass] = {}
        self._has_said_why = False

    @property
    def num_alive(self) -> int:
        """The number of microbatches whose activations are in memory."""
        return len(self._passes)

    def forward(
        self, microbatch: int, inputs: Sequence[torch.Tensor], *, finish: Callable[[Any], Any] | None = None
    ) -> Tensors:
        """Run the forward pass.

        Args:
            inputs: inputs of the module; inputs that require a gradient get one in the backward pass.
            finish: maps the module's result to the stage's outputs: a loss, on the last stage.
        Returns: the outputs, detached; an output requires a gradient if the stage needs that gradient.
        Raises: TypeError if the module returns values other than tensors.
        """
        leaves = tuple(one.detach().requires_grad_(one.requires_grad) for one in inputs)
        with torch.enable_grad():
            result = self.module(*leaves)
            if finish is not None:
                result = finish(result)
        outputs = tuple(result) if isinstance(result, list | tuple) else (result,)
        for one in outputs:
            if not isinstance(one, torch.Tensor):
                raise TypeError(
                    f"stage {self.index} ({self.name}) gave {type(one).__name__}; expected a tensor or a tuple of them"
                )
        self._passes[microbatch] = _Pass(leaves, outputs)
        return tuple(one.detach().requires_grad_(one.requires_grad) for one in outputs)

    def backward(self, microbatch: int, gradients: Sequence[torch.Tensor]) -> Tensors:
        """Run the whole backward pass.

        Args:
            gradients: gradients of the outputs that require one, in order.
        Returns: gradients of the inputs that require one, in order; zeros for an unused input.
        """
        done = self._passes.pop(microbatch)
        self._run_whole(done, gradients)
        return _take_gradients(done.inputs)

    def backward_input(self, microbatch: int, gradients: Sequence[torch.Tensor]) -> Tensors:
        """Run the half for which the previous stage waits, and compute the weights' gradients that cannot be put off.

        If the stage's inputs need no gradient, as on the first stage, this half computes nothing.
        """
        kept = self._passes[microbatch]
        inputs, outputs = _differentiable(kept.inputs), _differentiable(kept.outputs)
        kept.half = backward_input(outputs, gradients, inputs) if outputs else WeightHalf()
        if kept.half is None:
            self._say_once("a module is checkpointed with reentry: gradients of weights are not put off")
            self._run_whole(kept, gradients)
        elif kept.half.whole:
            names = {id(parameter): name for name, parameter in self.module.named_parameters()}
            whole = ", ".join(names.get(id(weight), "a tensor of no name") for weight in kept.half.whole)
            self._say_once(f"not put off: the gradients of {whole}, used in several places or by a function in Python")
        kept.outputs = ()
        found = _take_gradients(kept.inputs)
        kept.inputs = ()
        return found

    def backward_weight(self, microbatch: int) -> None:
        """Run the second half, after `backward_input`, and free the activations."""
        half = self._passes.pop(microbatch).half
        if half is not None:
            half.run()

    def forget(self) -> None:
        """Release the inputs and outputs of all microbatches, after a step that failed."""
        self._passes.clear()

    def _run_whole(self, done: _Pass, gradients: Sequence[torch.Tensor]) -> None:
        outputs = _differentiable(done.outputs)
        if outputs:
            torch.autograd.backward(outputs, gradients)

    def _say_once(self, words: str) -> None:
        if not self._has_said_why:
            self._has_said_why = True
            _log.warning("stage %d (%s): %s", self.index, self.name, words)


def _differentiable(tensors: Tensors) -> list[torch.Tensor]:
    return [one for one in tensors if one.requires_grad]


def _take_gradients(inputs: Tensors) -> Tensors:
    return tuple(torch.zeros_like(one) if one.grad is None else one.grad for one in _differentiable(inputs))
