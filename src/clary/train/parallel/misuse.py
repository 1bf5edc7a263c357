"""Refusal of script mistakes that would silently train nothing, or the wrong parameters.

Where: `DistributedModel`, `DistributedOptimizer`, `step` and `partition.decision` call the checks, each as soon as it
can detect the mistake.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from clary.train.parallel.errors import ParallelError

_MOST_REASONS = 3  # maximum number of reasons in one error
_WRAPPERS = ("torch.nn.parallel.", "torch.distributed.fsdp.", "deepspeed.runtime.engine")  # modules of wrapper classes
_is_stepping: ContextVar[bool] = ContextVar("clary_is_stepping", default=False)

NO_BACKWARD = (
    "the optimizer was to step, and no backward pass has run since it stepped last: call model.backward(loss) in the "
    "function that is decorated with smp.step"
)


@dataclass
class Passes:
    """Kinds of passes that have begun: forward in training with a graph, backward, and (`called`) any forward."""

    forward: bool = False
    backward: bool = False
    called: bool = False

    def add(self, other: Passes) -> None:
        """Add the passes of another record."""
        self.forward, self.backward = self.forward or other.forward, self.backward or other.backward
        self.called = self.called or other.called


@contextlib.contextmanager
def stepping() -> Iterator[None]:
    """Allow optimizers to step the model's parameters in this block, for DistributedOptimizer's inner optimizer."""
    token = _is_stepping.set(True)
    try:
        yield
    finally:
        _is_stepping.reset(token)


class OptimizerWatch:
    """Refuses steps over a model's parameters outside of `DistributedOptimizer.step`.

    Such a step ignores masters, shards and replicas, and includes parameters that lie on other ranks.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = weakref.ref(model)
        self._others: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # optimizers of other models
        self._handle = register_optimizer_step_pre_hook(self._look)

    def close(self) -> None:
        """Stop watching."""
        self._handle.remove()

    def _look(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        model = self._model()
        if model is None or _is_stepping.get() or optimizer in self._others:
            return
        own = {id(parameter) for parameter in model.parameters()}
        if any(id(one) in own for group in optimizer.param_groups for one in group["params"]):
            raise ParallelError(
                f"{type(optimizer).__name__}.step would step parameters of the DistributedModel by itself: "
                "after wrapping the model, wrap the optimizer too, optimizer = "
                "smp.DistributedOptimizer(optimizer), and call step of the result"
            )
        self._others.add(optimizer)


def check_parameters(kind: str, given: Sequence[torch.Tensor], model: torch.nn.Module) -> None:
    """Check that the parameters given to an optimizer are the model's.

    Parameters of replaced modules would not be trained, and gradients of foreign parameters would not be averaged.

    Args:
        kind: name of the optimizer's class.
        given: its parameters, of any shapes.
        model: the DistributedModel.

    Raises: ValueError with the number of foreign parameters.
    """
    own = {id(parameter) for parameter in model.parameters()}
    strange = [tuple(one.shape) for one in given if id(one) not in own]
    if strange:
        raise ValueError(
            f"{len(strange)} of the {len(given)} parameters of {kind} are not the "
            f"DistributedModel's, such as one of shape {strange[0]}: create the optimizer from "
            "model.parameters() after model = smp.DistributedModel(model), which may replace modules; "
            "register other parameters in the model"
        )


def refuse_originals(
    originals: Iterable[weakref.ref[torch.nn.Module]], arguments: Iterable[Any], model: torch.nn.Module
) -> None:
    """Refuse the original model, or another wrapper around the DistributedModel, as an argument of a step.

    Args:
        model: the DistributedModel.

    Raises: ParallelError.
    """
    found = [one() for one in originals]
    for argument in arguments:
        if not isinstance(argument, torch.nn.Module) or argument is model:
            continue
        if any(argument == one for one in found):
            raise ParallelError(
                f"smp.step was called with the original {type(argument).__name__}, which smp.DistributedModel "
                "has wrapped: pass what smp.DistributedModel returned, which cuts and casts the model and "
                "has `backward`"
            )
        if _is_wrapper(argument) and any(child is model for child in argument.children()):
            raise ParallelError(
                f"smp.step was called with a {type(argument).__name__} around the DistributedModel: pass the "
                "DistributedModel, which averages gradients over replicas by itself"
            )


def refuse_other_wrappers(module: torch.nn.Module) -> None:
    """Refuse a model that contains a wrapper of another library that averages gradients or cuts parameters.

    Raises: ValueError naming that module.
    """
    for name, one in module.named_modules():
        if _is_wrapper(one):
            place = f"with a {type(one).__name__} at {name}" if name else f"in a {type(one).__name__}"
            raise ValueError(
                f"smp.DistributedModel was given a model {place}: that wrapper and smp.DistributedModel would "
                "both place parameters and average gradients; pass the model without the wrapper"
            )


def _is_wrapper(module: torch.nn.Module) -> bool:
    return any(kind.__module__.startswith(_WRAPPERS) for kind in type(module).__mro__)


def refuse_untouched(goes: Passes, *, have_gradients: bool) -> None:
    """Refuse a step that ran backward, but neither called the DistributedModel nor gave it gradients.

    Args:
        goes: the passes of the step.

    Raises: ParallelError.
    """
    if goes.backward and not goes.called and not have_gradients:
        raise ParallelError(
            "model.backward ran in a step in which the DistributedModel was not called, so the step "
            "trains another model, on one rank of each pipeline and without averaging: put everything "
            "that is trained together into the one DistributedModel, or train the other model outside of "
            "smp.step"
        )


def check_tensor_degree(root: torch.nn.Module, degree: int, reasons: Sequence[str]) -> None:
    """Check that the model has a distributed module, if the tensor parallel degree is above 1.

    Args:
        reasons: why modules that the program marked are not distributed.

    Raises: ValueError if the model has no distributed module.
    """
    if degree == 1 or any(getattr(module, "is_distributed", False) for module in root.modules()):
        return
    more = [f"and {len(reasons) - _MOST_REASONS} more"] if len(reasons) > _MOST_REASONS else []
    words = "; ".join([*reasons[:_MOST_REASONS], *more]) or (
        "none that could be was made inside smp.model_creation(tensor_parallelism=True) or smp.tensor_parallelism(), "
        "or marked by smp.set_tensor_parallelism"
    )
    raise ValueError(
        f"tensor_parallel_degree is {degree}, and no module of the model is distributed, so every rank would hold all "
        f"of it: {words}. Mark modules whose sizes the degree divides, or set tensor_parallel_degree to 1"
    )


def check_parts(parts: Iterable[int], num_parts: int) -> None:
    """Check that every pipeline rank has a part of the model.

    Raises: ValueError naming the ranks without a part.
    """
    empty = sorted(set(range(num_parts)) - set(parts))
    if empty:
        raise ValueError(
            f"pipeline_parallel_degree (partitions) is {num_parts}, and pipeline ranks {', '.join(map(str, empty))} "
            "would hold no module of the model: set a smaller degree, or place modules there with smp.partition or "
            "smp.set_partition"
        )
