"""A gradient tape that reduces its gradients over all ranks, and the reduction of a list of gradients.

Source: the documented behaviour of SageMaker's and Horovod's DistributedGradientTape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from clary.train._native.interface import ReduceOp
from clary.train.collective.adapters.tensorflow.exchange import reduce_tensors
from clary.train.collective.adapters.tensorflow.process import Process

if TYPE_CHECKING:
    from typing_extensions import Self  # part of typing since Python 3.11

Reduce = Callable[[list[Any], Sequence[Any]], list[Any]]
"""Maps gradients (or None) and their variables to the gradients reduced over all ranks."""


def reduce_gradients(process: Process, gradients: Sequence[Any], op: ReduceOp, compression: Any) -> list[Any]:
    """Return the gradients reduced over all ranks, by one operation.

    Args:
        gradients: tensors, tf.IndexedSlices, which become dense, or None, which stays None; None at the same indices on
            all ranks.
        compression: a class of `compression.Compression`.
    Raises: as `exchange.reduce_tensors`.
    """
    places = [place for place, gradient in enumerate(gradients) if gradient is not None]
    packed = [compression.compress(tf.convert_to_tensor(gradients[place])) for place in places]
    reduced = reduce_tensors(process, [tensor for tensor, _ in packed], op)
    results: list[Any] = [None] * len(gradients)
    for place, tensor, (_, context) in zip(places, reduced, packed, strict=True):
        results[place] = compression.decompress(tensor, context)
    return results


class DistributedTape:
    """A tf.GradientTape whose `gradient` reduces over all ranks; all other members are the tape's own.

    Args:
        tape: the tape that records; it may be recording already.
        reduce: reduces its gradients.
    """

    def __init__(self, tape: Any, reduce: Reduce) -> None:
        self._tape = tape
        self._reduce = reduce

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradients of `target`, reduced over all ranks, in the structure of `sources`.

        Args: as `tf.GradientTape.gradient`.
        """
        gradients = self._tape.gradient(target, sources, output_gradients, unconnected_gradients)
        reduced = self._reduce(_flat(gradients), _flat(sources))
        return tf.nest.pack_sequence_as(gradients, reduced) if _is_structure(gradients) else reduced[0]

    def __enter__(self) -> Self:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)


def _is_structure(value: Any) -> bool:
    return isinstance(value, list | tuple | dict)


def _flat(structure: Any) -> list[Any]:
    """Return the leaves of a structure; tf.IndexedSlices and None are leaves."""
    return list(tf.nest.flatten(structure, expand_composites=False))
