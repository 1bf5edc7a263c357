"""Elastic training with TensorFlow: `hvd.elastic.run`, and states of models and variables."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from horovod.common.elastic import ObjectState, State, run_fn
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow.functions import broadcast_object, broadcast_object_fn, broadcast_variables
from horovod.tensorflow.mpi_ops import init, rank, shutdown
from horovod.tensorflow.util import variables_of_optimizer

from clary.train.collective.adapters.tensorflow.optimizer import build_optimizer

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]

_VARIABLES = "clary.variables"  # key of the variables among the plain objects of a commit


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training loop whose first argument is its state.

    After a failure, the state is restored from the last commit, also in the next attempt of a job. An operation that
    fails inside a graph raises an error of TensorFlow with the text of HorovodInternalError, and is handled like a
    HorovodInternalError.
    """

    @functools.wraps(func)
    def told(state: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return func(state, *args, **kwargs)
        except tf.errors.UnknownError as error:
            if HorovodInternalError.__name__ not in str(error):
                raise
            raise HorovodInternalError(str(error)) from error

    decorated: Callable[..., Any] = run_fn(told, _reset)
    return decorated


def _reset() -> None:
    shutdown()
    init()


class _VariablesState(ObjectState):
    """State of plain objects and of variables.

    Args:
        bcast_object: callback that sends the object of rank 0 to all ranks.
        kwargs: names and initial values of the plain objects.
    """

    def __init__(self, bcast_object: Callable[..., Any], **kwargs: Any) -> None:
        self._kept: list[np.ndarray] = []
        super().__init__(bcast_object=bcast_object, get_rank=rank, **kwargs)
        self._kept = self._read()

    def save(self) -> None:
        """Save copies of all values."""
        self._kept = self._read()
        super().save()

    def restore(self) -> None:
        """Restore all values from the copies."""
        self._write(self._kept)
        super().restore()

    def sync(self) -> None:
        """Send the values of rank 0 to all ranks."""
        self._share()
        self._kept = self._read()
        super().sync()

    def packer(self) -> Callable[[], bytes]:
        """Return a function that returns all copies as a pickle."""
        kept = {**copy.deepcopy(self._saved_state), _VARIABLES: list(self._kept)}
        return lambda: pickle.dumps(kept)

    def unpack(self, content: bytes) -> None:
        """Load the copies from a commit that this job wrote."""
        kept = pickle.loads(content)  # noqa: S301 - of this job's own folder
        self._kept = kept.pop(_VARIABLES)
        self._saved_state.update(kept)

    def _held(self) -> Sequence[Any]:
        """Return the variables."""
        raise NotImplementedError

    def _read(self) -> list[np.ndarray]:
        return [np.array(one) for one in self._held()]

    def _write(self, values: Sequence[np.ndarray]) -> None:
        for variable, value in zip(self._held(), values, strict=True):
            variable.assign(value)

    def _share(self) -> None:
        broadcast_variables(self._held(), root_rank=0)


class TensorFlowKerasState(_VariablesState):
    """State of a Keras model and its optimizer; `batch`, `epoch` and other plain objects are attributes.

    Args:
        model: a model whose weights exist.
        optimizer: None takes the optimizer with which the model was compiled.
        backend: argument for versions before TensorFlow 2; has no effect.
        kwargs: names and initial values of plain objects.
    Raises: ValueError for a model whose weights do not exist yet.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is not None:
            build_optimizer(self.optimizer, list(model.trainable_variables))
        super().__init__(bcast_object=broadcast_object, **kwargs)

    def _held(self) -> Sequence[Any]:
        return [*self.model.variables, *variables_of_optimizer(self.optimizer)]


class TensorFlowState(_VariablesState):
    """State of a list of variables.

    Args:
        variables: None takes the global variables of a graph of TensorFlow 1.
        session: session of TensorFlow 1; None takes the default session.
        kwargs: names and initial values of plain objects.
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(variables or tf.compat.v1.global_variables())
        self.session = session or tf.compat.v1.get_default_session()
        in_graph = not tf.executing_eagerly()
        self._sharing = broadcast_variables(self.variables, root_rank=0) if in_graph else None
        super().__init__(bcast_object=broadcast_object_fn(session=session) if in_graph else broadcast_object, **kwargs)

    def _held(self) -> Sequence[Any]:
        return self.variables

    def _read(self) -> list[np.ndarray]:
        return super()._read() if self._sharing is None else list(self.session.run(self.variables))

    def _write(self, values: Sequence[np.ndarray]) -> None:
        if self._sharing is None:
            super()._write(values)
            return
        for variable, value in zip(self.variables, values, strict=True):
            variable.load(value, self.session)

    def _share(self) -> None:
        if self._sharing is None:
            super()._share()
        else:
            self.session.run(self._sharing)
