"""Elastic training with Keras: the state, and callbacks of `fit` that update and commit it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horovod.tensorflow.elastic import TensorFlowKerasState, run

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]

_Callback: Any = tf.keras.callbacks.Callback


class KerasState(TensorFlowKerasState):
    """State of a Keras model and its optimizer.

    Args: as `TensorFlowKerasState`.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer=optimizer, **kwargs)


class CommitStateCallback(_Callback):
    """Commits a state after a fixed number of batches, and after each epoch."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.kept_state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Restart the count, so that all ranks have the same count."""
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit, if enough batches have passed since the last commit."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.kept_state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        self.kept_state.commit()


class UpdateBatchStateCallback(_Callback):
    """Stores the number of the batch in `state.batch`; after a reset, the first epoch omits the finished batches."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.kept_state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Reset the stored length of an epoch."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Shorten the epoch by the finished batches."""
        if self.params.get("steps"):
            self.steps_per_epoch = self.steps_per_epoch or self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.kept_state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Store the number."""
        self.kept_state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Reset the number to the first batch."""
        self.kept_state.batch = 0


class UpdateEpochStateCallback(_Callback):
    """Stores the number of finished epochs in `state.epoch`, also across resets."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.kept_state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Continue to count from the finished epochs."""
        self.initial_epoch = self.kept_state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Store the number."""
        self.kept_state.epoch = self.initial_epoch + epoch + 1
