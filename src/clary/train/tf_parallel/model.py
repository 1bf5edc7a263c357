"""`smp.DistributedModel`: a Keras model cut into parts, one on each rank of a pipeline.

Where: scripts derive their models from it, and call them inside of an `smp.step`.
Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_tensorflow.rst`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from clary.train.collective.adapters.tensorflow.memory import array_of, tensor_of
from clary.train.tf_parallel import session, tracing
from clary.train.tf_parallel.cutting import Cut, cut_model
from clary.train.tf_parallel.errors import GraphBuildError
from clary.train.tf_parallel.saving import save_whole
from clary.train.tf_parallel.variables import give_up, variable_of, without_repeats

_UNSPECIFIED = (
    tf.__internal__.autograph.control_status_ctx()
)  # AutoGraph status of code that is not being converted itself; with it, called functions are converted


class DistributedModel(tf.keras.Model):
    """A model whose `call` is cut over the ranks of a pipeline at the first step.

    Before, it works as a plain Keras model, but `fit` and Keras's other loops are refused if ranks share the model.
    Afterwards, `variables`, `trainable_variables` and the other lists contain this rank's variables alone. With several
    partitions, calls are then allowed only inside of an `smp.step`.
    """

    _clary_cut: Cut | None = None
    _clary_shows_all = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model. Raises: GraphBuildError outside of a step, if the model is cut into several parts."""
        return _called(self, super().__call__, args, kwargs)

    @property
    def cut(self) -> Cut:
        """The cut of the model. Raises: RuntimeError before the first step."""
        if self._clary_cut is None:
            raise RuntimeError(f"{self.name} is not cut yet: its first call within an smp.step cuts it")
        return self._clary_cut

    @property
    def partitioned(self) -> bool:
        """Whether the model is cut."""
        return self._clary_cut is not None

    @property
    def all_variables(self) -> list[Any]:
        """The variables of all parts, each once, in the same order on all ranks; others' variables have no values."""
        return self._all(lambda: self.variables)

    @property
    def all_trainable_variables(self) -> list[Any]:
        """The trained variables among `all_variables`."""
        return self._all(lambda: self.trainable_variables)

    @property
    def variables(self) -> list[Any]:
        """The variables that this rank holds."""
        return self._own(super().variables)

    @property
    def trainable_variables(self) -> list[Any]:
        """The variables that this rank holds and trains."""
        return self._own(super().trainable_variables)

    @property
    def non_trainable_variables(self) -> list[Any]:
        """The untrained variables that this rank holds."""
        return self._own(super().non_trainable_variables)

    @property
    def weights(self) -> list[Any]:
        """The weights that this rank holds."""
        return self._own(super().weights)

    @property
    def trainable_weights(self) -> list[Any]:
        """The weights that this rank holds and trains."""
        return self._own(super().trainable_weights)

    @property
    def non_trainable_weights(self) -> list[Any]:
        """The untrained weights that this rank holds."""
        return self._own(super().non_trainable_weights)

    def profile(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, since the costs of layers are read from a graph of the model's first call in a step."""

    def save_model(self, save_path: str = "/opt/ml/model") -> None:
        """Write the whole model with its latest weights as a SavedModel. All ranks call it; rank 0 writes.

        The signature `serving_default` takes the tensors of the model's first call, with any batch size, and returns
        `output_0` and so on.

        Raises: RuntimeError before the first step; ParallelError on all ranks if rank 0 could not write.
        """
        save_whole(self, super().__call__, save_path, session.current())

    def _own(self, variables: Sequence[Any]) -> list[Any]:
        cut = self._clary_cut
        if cut is None or self._clary_shows_all:
            return list(variables)
        part = session.current().part
        return [one for one in variables if cut.part_of(one) == part]

    def _all(self, read: Callable[[], Sequence[Any]]) -> list[Any]:
        object.__setattr__(self, "_clary_shows_all", True)
        try:
            return without_repeats(read())
        finally:
            object.__setattr__(self, "_clary_shows_all", False)


def _refuse_in_parts(name: str, instead: str) -> Callable[..., Any]:
    """Wrap a method of Keras so that it refuses models on several ranks."""
    original = getattr(tf.keras.Model, name)

    @functools.wraps(original)
    def method(self: DistributedModel, *args: Any, **kwargs: Any) -> Any:
        if session.is_initialized():
            configuration = session.current().configuration
            is_spread = configuration.partitions > 1 or (configuration.ddp and session.current().place.size > 1)
            if is_spread and (self.partitioned or name in _TRAINING):
                raise GraphBuildError(f"{self.name}.{name} does not work on a model that ranks share: {instead}")
        return original(self, *args, **kwargs)

    return method


_TRAINING = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
for _name in _TRAINING:
    setattr(DistributedModel, _name, _refuse_in_parts(_name, "call it in a function decorated with smp.step"))
for _name in ("save", "save_weights", "load_weights", "export", "get_weights", "set_weights"):
    _instead = "use smp.CheckpointManager, or save_model for the whole"
    if hasattr(tf.keras.Model, _name):
        setattr(DistributedModel, _name, _refuse_in_parts(_name, _instead))


@tf.autograph.experimental.do_not_convert
def _called(
    model: DistributedModel, original: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    call = tf.__internal__.autograph.tf_convert(original, _UNSPECIFIED)
    trace = tracing.current()
    if trace is None or trace.is_in_model:
        if trace is None and model.partitioned and session.current().configuration.partitions > 1:
            raise GraphBuildError(
                f"{model.name} was called outside of an smp.step, but this rank holds only a part of it: call "
                "it inside of an smp.step, or save the whole model with save_model"
            )
        return call(*args, **kwargs)
    if not model.partitioned:
        _cut(model, call, args, kwargs)
    return trace.call_model(lambda: call(*args, **kwargs))


def _cut(model: DistributedModel, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Decide the rank of each variable, and free other ranks' variables."""
    now = session.current()
    specs = tf.nest.map_structure(_spec, (tuple(args), dict(kwargs)))
    cut = cut_model(model, call, specs, now)
    object.__setattr__(model, "_clary_cut", cut)
    now.models.append(model)
    with tf.init_scope():
        if now.configuration.ddp:
            own = [variable_of(one) for one in model.variables]
            for variable, value in zip(own, now.links.first_replicas([array_of(one) for one in own]), strict=True):
                variable.assign(tensor_of(value))
        give_up(one for one in model.all_variables if cut.part_of(one) != now.part)
        waiting, now.waiting = now.waiting, []
        for hook in waiting:
            hook()


def _spec(leaf: Any) -> Any:
    return tf.TensorSpec(leaf.shape, leaf.dtype) if tf.is_tensor(leaf) else leaf
