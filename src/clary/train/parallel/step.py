"""The decorator of a training step, whose function runs once per microbatch.

Where: scripts decorate their step function. A call cuts the arguments (`microbatches`), runs the function in the order
of the pipeline, averages gradients, and returns all results. The first call places the model of a pipeline.
Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_pytorch.rst`, `smp.step`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from clary.train.parallel import runtime
from clary.train.parallel.arguments.step_function import StepFunction
from clary.train.parallel.arguments.step_options import read_options
from clary.train.parallel.errors import ParallelError
from clary.train.parallel.microbatches import merge_results, split_arguments
from clary.train.parallel.misuse import refuse_originals
from clary.train.parallel.pipeline.messages import map_leaves


@dataclass(frozen=True)
class Microbatch:
    """The microbatch that this thread computes.

    Args:
        is_traced: whether the model is traced instead of trained.
    """

    number: int
    total: int
    is_traced: bool = False


_current: ContextVar[Microbatch | None] = ContextVar("clary_microbatch", default=None)


def microbatch() -> Microbatch | None:
    """Return this thread's running microbatch; None outside of steps."""
    return _current.get()


def is_tracing() -> bool:
    """Return whether the step's function runs to trace the model instead of training it."""
    return (one := _current.get()) is not None and one.is_traced


def step(
    *arguments: Any,
    non_split_inputs: Collection[str] | None = None,
    input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> Any:
    """Decorate the function of a step; usable with or without arguments.

    Args:
        arguments: the function, or `non_split_inputs` and `input_split_axes` in this order.
        non_split_inputs: names of arguments that every microbatch gets whole.
        input_split_axes: axis along which an argument is cut, by name of argument, if it is not 0.
        detach_outputs: whether results are detached from their graphs. If not, activations stay in memory as long as
            the results.

    Returns: a function of the same arguments (`StepFunction`), which returns tensors as `StepOutput` and other leaves
        as lists with one item per microbatch.
    Raises: errors of `read_options`; the returned function raises errors of `split_arguments` and of the decorated
        function, `ParallelError` if another rank failed, or if it is called with the original model or, with a
        pipeline, before there is a DistributedModel.
    """
    function, whole, axes = read_options(arguments, non_split_inputs, input_split_axes)
    if function is None:
        return functools.partial(step, non_split_inputs=whole, input_split_axes=axes, detach_outputs=detach_outputs)
    wrapped = function

    @functools.wraps(wrapped)
    def run(*args: Any, **kwargs: Any) -> Any:
        now = runtime.current()
        total = now.configuration.microbatches
        if now.model is not None:
            refuse_originals(now.model.originals, (*args, *kwargs.values()), now.model)
        elif now.configuration.partitions > 1:
            raise ParallelError(
                f"smp.step was called with no DistributedModel, and pipeline_parallel_degree is "
                f"{now.configuration.partitions}: wrap the model in smp.DistributedModel first"
            )
        pieces = split_arguments(wrapped, args, kwargs, total, whole=whole, axes=axes)
        if now.model is not None:
            now.model.check_first_inputs(wrapped, args, kwargs)

        def body(number: int, *, is_traced: bool = False) -> Any:
            with _entered(Microbatch(number, total, is_traced)):
                result = wrapped(*pieces[number][0], **pieces[number][1])
                # Detached here, so that the graphs of early microbatches are freed before the last microbatch runs.
                return map_leaves(result, _detached) if detach_outputs else result

        model = now.model
        results = model.run_step(body, total) if model is not None else [body(number) for number in range(total)]
        return merge_results(results)

    return StepFunction(wrapped, run)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


@contextlib.contextmanager
def _entered(one: Microbatch) -> Iterator[None]:
    token = _current.set(one)
    try:
        yield
    finally:
        _current.reset(token)
