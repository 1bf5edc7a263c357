"""Costs of the layers of a model, read from a graph of its forward pass.

Where: `cutting` calls it before it plans. It only reads the graph, so all ranks compute equal costs.

Memory is the size of the layer's variables, and of its operations' results, which are kept for the backward pass. Work
is the number of multiplications and additions in products and convolutions, and the number of result elements in other
operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from clary.train.parallel.partition.plan import ModuleCost
from clary.train.tf_parallel.tracing import LayerCall
from clary.train.tf_parallel.variables import variable_of

_PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})
_CONVOLUTIONS = {"Conv2D": 1, "Conv3D": 1, "DepthwiseConv2dNative": 2}
"""Number of a filter's last dimensions that make channels of the result; a product sums over the others."""
_FREE = frozenset({"Const", "Placeholder", "ReadVariableOp", "NoOp", "Shape", "Identity"})


def layer_costs(calls: Iterable[LayerCall], graph: Any) -> list[ModuleCost]:
    """Return the cost of each layer, in order.

    Args:
        calls: calls of the layers, in `graph`.
    """
    operations = {one.name: one for one in graph.get_operations()}
    return [
        ModuleCost(
            call.name,
            seconds=sum(_work(operations[name]) for name in call.operations),
            memory_bytes=_memory_bytes(call, [operations[name] for name in call.operations]),
            shared=frozenset(id(variable_of(one)) for one in call.layer.variables),
        )
        for call in calls
    ]


def _memory_bytes(call: LayerCall, operations: Iterable[Any]) -> float:
    held = float(sum(math.prod(one.shape) * variable_of(one).dtype.size for one in call.layer.variables))
    results = (out for one in operations if one.type not in _FREE for out in one.outputs)
    return held + sum(_num_elements(out) * max(out.dtype.size or 0, 0) for out in results)


def _work(operation: Any) -> float:
    if operation.type in _FREE or not operation.outputs:
        return 0.0
    results = float(_num_elements(operation.outputs[0]))
    if operation.type in _PRODUCTS:
        return 2 * results * _inner_length(operation)
    if operation.type in _CONVOLUTIONS:
        return 2 * results * math.prod(_lengths(operation.inputs[1])[: -_CONVOLUTIONS[operation.type]])
    return results


def _inner_length(operation: Any) -> int:
    """Return the length of the dimension over which a product sums."""
    lengths = _lengths(operation.inputs[0])
    name = "transpose_a" if operation.type == "MatMul" else "adj_x"
    return lengths[-2 if operation.get_attr(name) else -1] if len(lengths) > 1 else 1


def _num_elements(tensor: Any) -> int:
    return math.prod(_lengths(tensor))


def _lengths(tensor: Any) -> list[int]:
    """Return the lengths of a tensor's dimensions; an unknown length counts as 1."""
    if tensor.shape.rank is None:
        return [1]
    return [length or 1 for length in tensor.shape.as_list()]
