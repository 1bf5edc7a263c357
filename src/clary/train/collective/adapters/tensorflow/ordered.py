"""Operations of TensorFlow that exchange arrays with other ranks; all ranks run them in one order, one at a time.

In eager mode a function is called at once. Inside `tf.function` it becomes one operation, in the program's order
([Note: order]). The operation starts when all its inputs are ready, and blocks a thread of TensorFlow's pool. It waits
only for operations of other ranks that have the same or an earlier place in the order, so a pool of one thread is
enough.

[Note: order]
TensorFlow runs operations of a graph when their inputs are ready, so two ranks could run two reductions in different
orders, each waiting for the other. Each of our operations therefore reads a variable called the turn, takes its value
as one more input, returns the value plus one, and assigns that to the variable. TensorFlow keeps reads and writes of a
variable in the program's order, also in functions, branches and loops inside the graph. Graphs of TensorFlow 1 have no
such rule; there each operation gets a control input from the previous operation in the same branch. An operation in a
branch and one outside of it have no order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from clary.train.collective.adapters.tensorflow.memory import array_of, tensor_of

Exchange = Callable[[list[np.ndarray]], list[np.ndarray]]


class _Turns:
    """This process's turn variable, and the last operation in each branch of each graph of TensorFlow 1."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._variable: Any = None
        self.last_operations: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()

    @property
    def variable(self) -> Any:
        """The variable that orders operations, created outside any graph at its first use.

        A separate thread creates it: a thread that traces a function for the second time must not create variables, and
        the scope of a strategy would create one variable per replica.
        """
        with self._lock:
            if self._variable is None:
                with ThreadPoolExecutor(1, thread_name_prefix="clary-turn") as maker:
                    self._variable = maker.submit(_make_turn).result()
            return self._variable


def _make_turn() -> Any:
    with tf.device("CPU:0"):
        return tf.Variable(np.int64(0), trainable=False, name="clary_turn")


_turns = _Turns()


def run_ordered(exchange: Exchange, tensors: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Run a function on the tensors' memory: at once, or, while a graph is built, at each run of the graph.

    Args:
        exchange: takes arrays with the shapes of `tensors`, and must not write them. It returns one array for each of
            `like`; these arrays must not be written afterwards. Inside a graph its errors become TensorFlow's, with the
            same text.
        tensors: on any device; they are copied to the CPU.
        like: a tensor or a tf.TensorSpec for each result, with its type and static shape.
    Returns: a tensor for each of `like`.
    """
    if tf.executing_eagerly():
        return [tensor_of(array) for array in exchange([array_of(tensor) for tensor in tensors])]
    if tf.compat.v1.executing_eagerly_outside_functions():
        turn = _turns.variable
        taken, *results = _as_operation(exchange, turn.read_value(), tensors, like)
        turn.assign(taken)
    else:
        graph = tf.compat.v1.get_default_graph()
        branch = graph._get_control_flow_context()
        last = _turns.last_operations.setdefault(graph, {})  # branch -> its last operation; None: outside of branches
        with tf.control_dependencies([last[branch]] if branch in last else []):
            taken, *results = _as_operation(exchange, tf.constant(0, tf.int64), tensors, like)
        last[branch] = taken.op
    for result, example in zip(results, like, strict=True):
        result.set_shape(example.shape)
    return results


def _as_operation(exchange: Exchange, turn: Any, tensors: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Add the operation to the graph: from (turn, *tensors) to (turn, *results)."""

    def body(turn_taken: Any, *memories: Any) -> list[Any]:
        arrays = [np.asarray(memory, order="C") for memory in memories]  # TensorFlow passes a scalar as a NumPy scalar
        return [np.int64(turn_taken + 1), *exchange(arrays)]

    types = [tf.int64, *(example.dtype for example in like)]
    return list(tf.numpy_function(body, [turn, *tensors], types, stateful=True))
