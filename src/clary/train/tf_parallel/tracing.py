"""Trace of a step's function: its graph, with the layer of every operation and the requested gradients.

Where: `step` traces with it; `model` reports calls of the model to it; `placement` reads its records.

[Note: marks] During a model's call, a wrapper of Keras's `Layer.__call__` intercepts every call of its layers.
An operation that is added to the graph belongs to every layer whose call is running. Layers that have a part, and
`smp.partition`, mark the operations that are added within their call or block; the innermost mark wins. TensorFlow
records the forward operation with which each operation of gradients is colocated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from clary.train.tf_parallel.errors import GraphBuildError


@dataclass
class LayerCall:
    """The calls of one layer.

    Args:
        name: unique path: names of the enclosing layers and its own, with dots.
        outer: the enclosing layer of its first call.
        operations: operations of all its calls, including inner layers.
        has_layers: whether other layers were called inside of it.
    """

    layer: Any
    name: str
    outer: LayerCall | None
    operations: list[str] = field(default_factory=list)
    has_layers: bool = False


class Trace:
    """Records of one graph during its construction.

    Args:
        part_of: returns the part of a layer; None for a layer without a part of its own.
        gradients_of: computes gradients in this trace's graph from targets, sources, initial gradients, and the value
            for unconnected sources.
    """

    def __init__(
        self, part_of: Callable[[Any], int | None] = lambda _: None, gradients_of: Callable[..., Any] | None = None
    ) -> None:
        self.gradients_of = gradients_of
        self._part_of = part_of
        self.begin(None)

    def begin(self, graph: Any) -> None:
        """Start a graph, and drop an earlier graph, since TensorFlow may trace twice."""
        self.graph = graph
        self.marks: dict[str, int] = {}
        self.inside: set[str] = set()  # operations of models
        self.layers: dict[int, LayerCall] = {}
        self.results: list[Any] = []  # tensors that models returned
        self.targets: list[Any] = []  # tensors whose gradients were requested
        self.gradients: list[Any] = []
        self._around: list[LayerCall] = []
        self._is_in_model = False

    @property
    def is_in_model(self) -> bool:
        """Whether a model is being called."""
        return self._is_in_model

    @property
    def is_here(self) -> bool:
        """Whether operations are added to this trace's graph itself, not to a branch or a function inside of it."""
        return tf.compat.v1.get_default_graph() is self.graph

    @contextlib.contextmanager
    def marking(self, part: int | None) -> Iterator[list[str]]:
        """Mark the block's unmarked new operations; yield a list, which receives their names at the end."""
        begin = len(self.graph.get_operations())
        names: list[str] = []
        yield names
        names += [one.name for one in self.graph.get_operations()[begin:]]
        if part is not None:
            for name in names:
                self.marks.setdefault(name, part)

    def call_model(self, call: Callable[[], Any]) -> Any:
        """Call a model, and record its operations and results.

        Raises: GraphBuildError for a call inside of a branch, a loop or another function.
        """
        if not self.is_here:
            raise GraphBuildError(
                "the model is called inside of a tf.cond, tf.while_loop or another tf.function within the step: call "
                "it in the step's function itself"
            )
        with self.marking(None) as names:
            self._is_in_model = True
            try:
                result = call()
            finally:
                self._is_in_model = False
        self.inside.update(names)
        self.results += [one for one in tf.nest.flatten(result, expand_composites=True) if tf.is_tensor(one)]
        return result

    def call_layer(self, layer: Any, call: Callable[[], Any]) -> Any:
        """Call a layer of a model, and record the operations that belong to it."""
        found = self.layers.get(id(layer))
        if found is None:
            name = ".".join([one.name.rpartition(".")[2] for one in self._around] + [layer.name])
            taken = {one.name for one in self.layers.values()}
            number = next(number for number in range(len(taken) + 1) if _numbered(name, number) not in taken)
            outer = self._around[-1] if self._around else None
            found = self.layers[id(layer)] = LayerCall(layer, _numbered(name, number), outer)
        if self._around:
            self._around[-1].has_layers = True
        self._around.append(found)
        try:
            with self.marking(self._part_of(layer)) as names:
                result = call()
        finally:
            self._around.pop()
        found.operations += names
        return result

    def units(self, variable_users: Collection[str]) -> list[LayerCall]:
        """Return the layers that must lie whole on one rank, in the order of their calls.

        These are layers without inner layers, and layers that use variables themselves, such as a loop over a cell.

        Args:
            variable_users: operations that use variables.
        """
        direct: dict[int, set[str]] = {key: set(one.operations) for key, one in self.layers.items()}
        for one in self.layers.values():
            if one.outer is not None:
                direct[id(one.outer.layer)] -= set(one.operations)
        whole = {key for key, one in self.layers.items() if not one.has_layers or direct[key] & set(variable_users)}
        return [one for key, one in self.layers.items() if key in whole and not _is_inside(one, whole)]


_current: Trace | None = None


def current() -> Trace | None:
    """Return the running trace; None outside of steps."""
    return _current


@contextlib.contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Let a trace record calls of layers and compute the gradients of tapes in this block; see [Note: marks]."""
    global _current
    before, _current = _current, trace
    layer_class, tape_class = tf.keras.layers.Layer, tf.GradientTape
    call, gradient = layer_class.__call__, tape_class.gradient

    def seen_call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if _current is None or not (_current.is_in_model and _current.is_here):
            return call(layer, *args, **kwargs)
        return _current.call_layer(layer, lambda: call(layer, *args, **kwargs))

    def seen_gradient(
        tape: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        if _current is None or _current.gradients_of is None or not _current.is_here:
            return gradient(tape, target, sources, output_gradients, unconnected_gradients)
        found = _current.gradients_of(
            tf.nest.flatten(target),
            tf.nest.flatten(sources),
            None if output_gradients is None else tf.nest.flatten(output_gradients),
            unconnected_gradients,
        )
        return tf.nest.pack_sequence_as(sources, found)

    if before is None:
        layer_class.__call__, tape_class.gradient = seen_call, seen_gradient
    try:
        yield trace
    finally:
        _current = before
        if before is None:
            layer_class.__call__, tape_class.gradient = call, gradient


def _is_inside(call: LayerCall, whole: Collection[int]) -> bool:
    outer = call.outer
    while outer is not None:
        if id(outer.layer) in whole:
            return True
        outer = outer.outer
    return False


def _numbered(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name
