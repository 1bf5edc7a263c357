"""Tapes whose gradients are reduced over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradients import GradientOptions, GradientReducer, groups_of
from horovod.tensorflow.mpi_ops import Average

from clary.train.collective.adapters.tensorflow.tape import DistributedTape


class _Tape(DistributedTape):
    """A tape of Horovod, which may keep the gradients of some variables local to their rank."""

    def __init__(self, tape: Any, reducer: GradientReducer) -> None:
        super().__init__(tape, reducer)
        self._reducer = reducer

    def register_local_source(self, source: Any) -> None:
        """Keep the gradients of a variable local to this rank."""
        self._reducer.keep_local(source)

    def gradient(  # type: ignore[override]  # Horovod's order of arguments
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradients of `target`, reduced over all ranks, in the structure of `sources`.

        Args:
            target, sources, output_gradients, unconnected_gradients: as `tf.GradientTape.gradient`.
            use_generic_names: has no effect; names of operations are never taken from variables.
        """
        return super().gradient(target, sources, output_gradients, unconnected_gradients)

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """Return the (variable, gradient) pairs of local variables, and the pairs of all other variables.

        Args: as `gradient`.
        """
        gradients = self.gradient(target, sources, output_gradients, use_generic_names)
        pairs = list(zip(sources, gradients, strict=True))
        local = [pair for pair in pairs if self._reducer.is_local(pair[0])]
        return local, [pair for pair in pairs if not self._reducer.is_local(pair[0])]


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> _Tape:
    """Return a tape whose `gradient` reduces over all ranks.

    Args:
        gradtape: a tf.GradientTape, which may still record.
        device_dense, device_sparse: devices of inputs and results; all operations run on the CPU.
        compression: compressor of gradients for sending.
        sparse_as_dense: make tf.IndexedSlices dense before they are sent.
        op: Average, Sum, Adasum, Min, Max or Product.
        gradient_predivide_factor: divides gradients before the sum, and multiplies the average.
        num_groups: argument of Horovod before 0.22; use `groups`.
        groups: number of groups, or lists of variables, whose gradients are reduced all at once.
        process_set: ranks that take part; on other ranks gradients stay unchanged.
        scale_local_gradients: divide gradients of local variables by the number of ranks.
    Raises: ValueError for options that exclude each other.
    """
    options = GradientOptions(
        name="DistributedGradientTape",
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        predivide=gradient_predivide_factor,
        groups=groups_of(num_groups, groups),
        process_set=process_set,
        scales_local=scale_local_gradients,
    )
    return _Tape(gradtape, GradientReducer(options))


def PartialDistributedGradientTape(gradtape: Any, *args: Any, local_layers: Any = None, **kwargs: Any) -> _Tape:
    """Return a distributed tape that keeps the gradients of some layers local to their rank.

    Args:
        gradtape, args, kwargs: as `DistributedGradientTape`.
        local_layers: a layer of Keras or a list of layers.
    Raises: ValueError for other `local_layers`.
    """
    tape = DistributedGradientTape(gradtape, *args, **kwargs)
    for variable in variables_of(local_layers):
        tape.register_local_source(variable)
    return tape


def variables_of(local_layers: Any) -> list[Any]:
    """Return the trainable weights of a layer of Keras, of a list of them, or of None.

    Raises: ValueError for anything else.
    """
    layers = [] if local_layers is None else local_layers
    layers = list(layers) if isinstance(layers, list | tuple | set) else [layers]
    if not all(isinstance(layer, tf.keras.layers.Layer) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return [variable for layer in layers for variable in layer.trainable_weights]
