"""One call of a planned step: runs this rank's tasks for all microbatches, and exchanges messages with other ranks.

Where: `step` runs it, eagerly or within one operation of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clary.train._native.errors import CollectiveError
from clary.train.collective.adapters.tensorflow.memory import array_of, tensor_of
from clary.train.parallel.errors import ParallelError, RankLost
from clary.train.parallel.layout.mesh import Along
from clary.train.tf_parallel.graphs.nodes import Output
from clary.train.tf_parallel.graphs.order import Task
from clary.train.tf_parallel.graphs.work import Message
from clary.train.tf_parallel.links import FIRST_TENSOR_TAG, Links
from clary.train.tf_parallel.plan import Plan

_HEADER = 8
"""Number of values sent before a tensor whose shape is unknown at tracing: number of dimensions, and seven lengths."""


class Run:
    """One call of a step.

    Args:
        pieces: tensors of each argument of the step, one per microbatch.
    """

    def __init__(self, plan: Plan, links: Links, pieces: Sequence[Sequence[Any]], num_microbatches: int) -> None:
        self._plan = plan
        self._links = links
        self._under_way: list[Any] = []  # sends in progress, with their buffers
        self._values: list[dict[Output, Any]] = [
            {**plan.captured, **{name: piece[number] for name, piece in zip(plan.arguments, pieces, strict=True)}}
            for number in range(num_microbatches)
        ]

    def results(self) -> list[list[Any]]:
        """Run all tasks; return the step's results as eager tensors, by microbatch.

        Raises: RankLost if another rank has ended or does not answer; ParallelError if this rank fails, after which the
            other ranks fail too. No result of a failed call is usable.
        """
        task: Task | None = None
        try:
            for task in self._plan.tasks:
                self._run(task)
            for work in self._under_way:
                work.wait()
        except CollectiveError as error:
            raise RankLost(f"rank {self._links.rank} in a step, {_words(task)}: {error}") from error
        except Exception as error:
            words = f"rank {self._links.rank} failed in a step, {_words(task)}: {type(error).__name__}: {error}"
            self._links.world.communicator.abort(words[:2000])
            raise ParallelError(words) from error
        return [[values[one] for one in self._plan.results] for values in self._values]

    def _run(self, task: Task) -> None:
        values = self._values[task.microbatch]
        for message in self._plan.receives.get(task.level, ()):
            values[message.output] = self._received(message, task.microbatch)
        segment = self._plan.segments.get(task.level)
        if segment is not None:
            made = segment([values[one] for one in segment.inputs])
            values.update(zip(segment.outputs, made, strict=True))
        for message in self._plan.sends.get(task.level, ()):
            self._send(message, task.microbatch, values[message.output])
        for one in self._plan.last_uses.get(task.level, ()):
            values.pop(one, None)

    def _send(self, message: Message, microbatch: int, tensor: Any) -> None:
        array = array_of(tensor)
        peer, tag = self._links.global_rank(Along.PP, message.target), self._tag(message, microbatch)
        if not self._plan.specs[message.output].shape.is_fully_defined():
            header = np.zeros(_HEADER, np.int64)
            header[: array.ndim + 1] = [array.ndim, *array.shape]
            self._under_way.append(self._links.world.isend(header, peer, tag))
        if array.nbytes:
            self._under_way.append(self._links.world.isend(_bytes_of(array), peer, tag))

    def _received(self, message: Message, microbatch: int) -> Any:
        spec = self._plan.specs[message.output]
        peer, tag = self._links.global_rank(Along.PP, message.source), self._tag(message, microbatch)
        if spec.shape.is_fully_defined():
            shape = tuple(spec.shape.as_list())
        else:
            header = np.zeros(_HEADER, np.int64)
            self._links.world.recv(header, peer, tag)
            shape = tuple(int(length) for length in header[1 : 1 + header[0]])
        array = self._links.room(shape, np.dtype(spec.dtype.as_numpy_dtype))
        if array.nbytes:
            self._links.world.recv(_bytes_of(array), peer, tag)
        return tensor_of(array)

    def _tag(self, message: Message, microbatch: int) -> int:
        return FIRST_TENSOR_TAG + message.number * len(self._values) + microbatch


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _words(task: Task | None) -> str:
    return "before its first task" if task is None else f"microbatch {task.microbatch}, level {task.level}"
