"""`smp.step`: the decorator of a training step, whose function runs once per microbatch.

Where: scripts decorate their step function. A call reads the arguments (`arguments`). If this kind of arguments is new,
it traces the function (`tracing`) and plans with the other ranks (`plan`). Then it runs the plan (`running`).

Outside of a tf.function, a call runs at once. Inside of a tf.function, a call becomes one operation of the graph. The
operation takes this rank's variables as inputs, so that TensorFlow keeps the program's order of steps and of variable
updates.
Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_common_api.rst`, `smp.step`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from clary.train.collective.adapters.tensorflow.memory import array_of, tensor_of
from clary.train.collective.adapters.tensorflow.ordered import run_ordered
from clary.train.parallel.arguments.step_function import StepFunction
from clary.train.parallel.arguments.step_options import read_options
from clary.train.parallel.layout.mesh import Along
from clary.train.tf_parallel import session
from clary.train.tf_parallel.arguments import Arguments, read_arguments
from clary.train.tf_parallel.errors import GraphBuildError
from clary.train.tf_parallel.gradients import gradients_of
from clary.train.tf_parallel.outputs import GradientOutput, StepOutput
from clary.train.tf_parallel.plan import Plan, make_plan
from clary.train.tf_parallel.running import Run
from clary.train.tf_parallel.session import Session
from clary.train.tf_parallel.tracing import Trace, tracing
from clary.train.tf_parallel.variables import handle_of

_COMPILATION = ("jit_compile", "experimental_compile")
_OPTIONS = frozenset({"autograph", "reduce_retracing", "experimental_relax_shapes", "experimental_autograph_options"})


@dataclass(frozen=True)
class Traced:
    """A function that was traced for one kind of arguments.

    Args:
        structure: structure of the result.
        leaves: leaves of the result, with None in place of tensors.
        is_tensor: whether each leaf is a tensor.
        gradients: whether each returned tensor is a gradient to average over replicas.
        arguments: kept alive, since the key contains the `id` of Python values.
    """

    plan: Plan
    structure: Any
    leaves: tuple[Any, ...]
    is_tensor: tuple[bool, ...]
    gradients: tuple[bool, ...]
    specs: tuple[Any, ...]
    arguments: Arguments


def step(
    *arguments: Any,
    non_split_inputs: Collection[str] | None = None,
    input_split_axes: Mapping[str, int] | None = None,
    input_signature: Sequence[Any] | None = None,
    **options: Any,
) -> Any:
    """Decorate the function of a step; usable with or without arguments.

    Args:
        arguments: the function, or `non_split_inputs` and `input_split_axes` in this order.
        non_split_inputs: names of arguments that every microbatch gets whole.
        input_split_axes: axes to cut other than 0, by name of argument.
        input_signature: specs of the whole batch, as for tf.function.
        options: other arguments of tf.function; options for compilation are refused, others have no effect.

    Returns: a function of the same arguments (`StepFunction`), which returns tensors as `StepOutput` and other leaves
        as lists with one item per microbatch.
    Raises: errors of `read_options`; ValueError for an option of compilation, TypeError for an unknown option. The
        returned function raises errors of `read_arguments`, `make_plan`, `Run.results` and the decorated function; if
        a tf.function runs the step, errors of ranks become TensorFlow errors with the same text.
    """
    function, whole, axes = read_options(arguments, non_split_inputs, input_split_axes)
    if function is None:
        return functools.partial(
            step,
            non_split_inputs=whole,
            input_split_axes=axes,
            input_signature=input_signature,
            **options,
        )
    _check_options(options)
    return _Step(function, whole, axes, input_signature).as_function()


class _Step:
    """A decorated function, with a graph for each kind of arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        whole: Collection[str],
        axes: Mapping[str, int],
        signature: Sequence[Any] | None,
    ) -> None:
        self._function = function
        self._converted = tf.__internal__.autograph.tf_convert(function, tf.__internal__.autograph.control_status_ctx())
        self._whole = whole
        self._axes = axes
        self._signature = signature
        self._traced: dict[Any, Traced] = {}
        self._session: Session | None = None

    def as_function(self) -> StepFunction:
        """Return the step as scripts call it; it carries AutoGraph's mark of functions that are not converted."""

        @functools.wraps(self._function)
        @tf.autograph.experimental.do_not_convert
        def run(*args: Any, **kwargs: Any) -> Any:
            return self._call(args, kwargs)

        return StepFunction(self._function, run)

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        now = session.current()
        if self._session is not now:  # the program was initialised again
            self._session, self._traced = now, {}
        arguments = read_arguments(
            self._function, args, kwargs, whole=self._whole, axes=self._axes, signature=self._signature
        )
        key = arguments.key(now.configuration.microbatches)
        if key not in self._traced:
            self._traced[key] = _trace(self._converted, self._function.__name__, arguments, now)
        return _merged(self._traced[key], arguments, now)


def _trace(function: Callable[..., Any], name: str, arguments: Arguments, now: Session) -> Traced:
    trace = Trace(lambda layer: _part_of(layer, now), gradients_of)
    found: dict[str, Any] = {}

    def traced(*tensors: Any) -> list[Any]:
        trace.begin(tf.compat.v1.get_default_graph())
        args, kwargs = arguments.filled(tensors)
        result = function(*args, **kwargs)
        leaves = [_read(one) for one in tf.nest.flatten(result)]
        found["is_tensor"] = tuple(map(tf.is_tensor, leaves))
        found["structure"] = tf.nest.map_structure(lambda _: 0, result)
        found["leaves"] = tuple(None if tf.is_tensor(one) else one for one in leaves)
        results = [one for one in leaves if tf.is_tensor(one)]
        found["gradients"] = _gradients_among(results, trace, now)
        return results

    with tf.init_scope(), tracing(trace):
        concrete = tf.function(traced, autograph=False).get_concrete_function(
            *arguments.specs(now.configuration.microbatches)
        )
    if now.configuration.partitions > 1 and not trace.results:
        raise GraphBuildError(
            f"{name} calls no smp.DistributedModel, but there are {now.configuration.partitions} "
            "partitions: call the model inside this function, or remove its smp.step"
        )
    with tf.init_scope():
        plan = make_plan(concrete, trace, now)
    specs = tuple(tf.TensorSpec(one.shape, one.dtype) for one in concrete.outputs)
    return Traced(plan, **found, specs=specs, arguments=arguments)


def _merged(traced: Traced, arguments: Arguments, now: Session) -> Any:
    """Run the step, and join the results of all microbatches."""
    total = now.configuration.microbatches
    tensors = _run(traced, arguments, now)
    means = iter(tensors[total * len(traced.specs) :])
    outputs: list[StepOutput] = []
    for number, is_gradient in enumerate(traced.gradients):
        by_microbatch = [tensors[microbatch * len(traced.specs) + number] for microbatch in range(total)]
        if is_gradient:
            outputs.append(GradientOutput(by_microbatch, next(means), lambda asked: _averaged(asked, now)))
        else:
            outputs.append(StepOutput(by_microbatch))
    left = iter(outputs)
    leaves = [
        next(left) if is_tensor else [leaf] * total
        for leaf, is_tensor in zip(traced.leaves, traced.is_tensor, strict=True)
    ]
    return tf.nest.pack_sequence_as(traced.structure, leaves)


def _run(traced: Traced, arguments: Arguments, now: Session) -> list[Any]:
    """Return all results of the first microbatch, of the second and so on, followed by the means of gradients."""
    total = now.configuration.microbatches
    num_arguments = len(arguments.tensors)

    def run(*tensors: Any) -> list[Any]:
        pieces = arguments.cut(tensors[:num_arguments], total)
        by_microbatch = Run(traced.plan, now.links, pieces, total).results()
        return [*(one for results in by_microbatch for one in results), *_means(by_microbatch, traced, now)]

    if tf.executing_eagerly():
        return run(*arguments.tensors)
    specs = [*(traced.specs * total), *(spec for spec, one in zip(traced.specs, traced.gradients, strict=True) if one)]
    held = [now.turn, *(one for model in now.models for one in model.variables)]
    results = tf.py_function(run, [*arguments.tensors, *map(handle_of, held)], [spec.dtype for spec in specs])
    results = results if isinstance(results, list | tuple) else []  # without outputs, the result is the operation
    for result, spec in zip(results, specs, strict=True):
        result.set_shape(spec.shape)
    return list(results)


def _means(by_microbatch: Sequence[Sequence[Any]], traced: Traced, now: Session) -> list[Any]:
    """Return the mean over microbatches and replicas of every gradient to average."""
    numbers = [number for number, is_gradient in enumerate(traced.gradients) if is_gradient]
    means = [StepOutput([results[number] for results in by_microbatch]).reduce_mean() for number in numbers]
    return [tensor_of(array) for array in now.links.average([array_of(one) for one in means])]


def _averaged(tensors: Sequence[Any], now: Session) -> list[Any]:
    return run_ordered(now.links.average, tensors, tensors)


def _gradients_among(results: Sequence[Any], trace: Trace, now: Session) -> tuple[bool, ...]:
    """Return, for each result, whether it is averaged over replicas.

    Raises: GraphBuildError for gradients that the step changes before it returns them.
    """
    if not now.configuration.ddp or now.links.size(Along.DP) == 1:
        return (False,) * len(results)
    gradients, returned = {id(one) for one in trace.gradients}, {id(one) for one in results}
    if gradients - returned:
        raise GraphBuildError(
            "with the key ddp, gradients are averaged over the replicas when the step returns them, but "
            "this step does not return all its gradients unchanged: return them unchanged, and clip or "
            "change them outside of smp.step"
        )
    return tuple(id(one) in gradients for one in results)


def _part_of(layer: Any, now: Session) -> int | None:
    for model in now.models:
        if (part := model.cut.parts.get(id(layer))) is not None:
            return int(part)
    return None


def _read(leaf: Any) -> Any:
    """Convert a leaf of a result to a form that the graph can return."""
    if isinstance(leaf, tf.Variable | tf.IndexedSlices):
        return tf.convert_to_tensor(leaf)
    return leaf


def _check_options(options: Mapping[str, Any]) -> None:
    """Check the arguments of tf.function.

    Raises: ValueError for compilation, TypeError for an argument that tf.function lacks.
    """
    for name in _COMPILATION:
        if options.get(name):
            raise ValueError(
                f"smp.step: {name} would compile the step as one piece, but the step runs in pieces on "
                "several ranks: use tf.config.optimizer.set_jit(True)"
            )
    unknown = sorted(set(options) - _OPTIONS - set(_COMPILATION))
    if unknown:
        raise TypeError(f"smp.step has no argument {', '.join(unknown)}")
