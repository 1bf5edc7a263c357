"""TensorFlow functions for pieces of a graph.

Where: `plan` makes a function for each level of a rank. A piece takes results of other pieces and returns results for
them; each call runs the piece's operations with effects once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from clary.train.tf_parallel.graphs.nodes import Output

_COLOCATION = "_class"


class Pieces:
    """A graph from which pieces are made.

    Args:
        graph: a TensorFlow graph, which is not changed.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._definition = graph.as_graph_def()
        self._nodes = {node.name: node for node in self._definition.node}

    def tensor(self, output: Output) -> Any:
        """Return the graph's own tensor."""
        return self._graph.get_tensor_by_name(str(output))

    def piece(
        self, names: Sequence[str], inputs: Sequence[Output], outputs: Sequence[Output], effects: Sequence[str]
    ) -> Segment:
        """Make a function of some operations.

        Args:
            names: the operations in topological order.
            inputs: results of other operations, in the order of the function's arguments.
            outputs: results of these operations, in the order of the function's results.
            effects: the operations that must run even if their results are not used.
        """
        definition = tf.compat.v1.GraphDef()
        definition.versions.CopyFrom(self._definition.versions)
        definition.library.CopyFrom(self._definition.library)
        fed = {str(output): f"clary_input_{number}" for number, output in enumerate(inputs)}
        for output, name in zip(inputs, fed.values(), strict=True):
            node = definition.node.add()
            node.name, node.op = name, "Placeholder"
            tensor = self.tensor(output)
            node.attr["dtype"].type = tensor.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
        here = set(names)
        for name in names:
            node = definition.node.add()
            node.CopyFrom(self._nodes[name])
            node.attr.pop(_COLOCATION, None)
            kept = [_renamed(one, fed) for one in node.input if not one.startswith("^") or one[1:] in here]
            del node.input[:]
            node.input.extend(kept)

        def imported() -> None:
            tf.graph_util.import_graph_def(definition, name="")

        wrapped = tf.compat.v1.wrap_function(imported, [])
        graph = wrapped.graph
        feeds = [graph.get_tensor_by_name(f"{name}:0") for name in fed.values()]
        results = [graph.get_tensor_by_name(str(one)) for one in outputs]
        kept_alive = [graph.get_operation_by_name(name) for name in effects]
        pruned = wrapped.prune(feeds, {"results": results, "effects": kept_alive})
        # TensorFlow does not optimize a pruned function that is called directly: gradients of convolutions took twice
        # as long.
        called = tf.function(lambda *values: pruned(*values)["results"], autograph=False)
        function = called.get_concrete_function(*(tf.TensorSpec(one.shape, one.dtype) for one in feeds))
        return Segment(function, tuple(inputs), tuple(outputs))


@dataclass(frozen=True)
class Segment:
    """A callable piece of a graph.

    Args:
        inputs: the arguments of `__call__`.
        outputs: its results.
    """

    function: Any
    inputs: tuple[Output, ...]
    outputs: tuple[Output, ...]

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Compute outputs from inputs, both eager tensors."""
        return list(self.function(*values))


def _renamed(text: str, fed: dict[str, str]) -> str:
    """Return the name that an operation's input has in the piece."""
    if text.startswith("^"):
        return text
    return fed.get(text if ":" in text else f"{text}:0", text)
