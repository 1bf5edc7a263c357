"""Callbacks of `fit`, for Keras 3 and for legacy Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from horovod.tensorflow.functions import broadcast_global_variables, broadcast_variables
from horovod.tensorflow.mpi_ops import rank, size
from horovod.tensorflow.reductions import allreduce
from horovod.tensorflow.util import reference, variables_of_optimizer

_Callback: Any = tf.keras.callbacks.Callback
_ModelCheckpoint: Any = tf.keras.callbacks.ModelCheckpoint


class BroadcastGlobalVariablesCallback(_Callback):
    """Broadcasts one rank's model and optimizer to all ranks after the first batch, when all variables exist.

    Args:
        root_rank: rank that sends.
        device: device of inputs and results.
        local_variables: one or several variables of the model that keep their value on each rank; no effect in graphs
            of TensorFlow 1.
    Raises: ValueError if a local variable is not a variable of TensorFlow or Keras.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        given = [] if local_variables is None else local_variables
        held = list(given) if isinstance(given, list | tuple | set) else [given]
        if not all(hasattr(one, "assign") for one in held):
            raise ValueError("All local variables must be of tf.Variable type.")
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local = {reference(one) for one in held}

    def register_local_var(self, var: Any) -> None:
        """Keep the value of a variable on each rank."""
        self._local.add(reference(var))

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast after the first batch; do nothing later."""
        if self.broadcast_done:
            return
        with tf.device(self.device):
            if tf.executing_eagerly():
                held = [one for one in self.model.variables if reference(one) not in self._local]
                broadcast_variables(held, root_rank=self.root_rank)
                broadcast_variables(variables_of_optimizer(self.model.optimizer), root_rank=self.root_rank)
            else:
                session: Any = tf.compat.v1.keras.backend.get_session()
                session.run(broadcast_global_variables(self.root_rank))
        self.broadcast_done = True


class MetricAverageCallback(_Callback):
    """Replaces each epoch's metrics by averages over all ranks; put it before callbacks that read the metrics.

    Args:
        device: device of inputs and results.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average the metrics in place, in the order of their names."""
        for metric, value in sorted((logs or {}).items()):
            averaged = allreduce(tf.constant(value, tf.float64), device_dense=self.device, name=f"metric.{metric}")
            logs[metric] = float(averaged.numpy())


class LearningRateScheduleCallback(_Callback):
    """Sets the learning rate to `initial_lr * multiplier` for a range of epochs.

    Args:
        initial_lr: learning rate at the beginning of the training.
        multiplier: a function of the epoch that returns the factor; or a number, whose factor is
            `multiplier ** (epoch - start_epoch)`.
        start_epoch, end_epoch: first epoch of the range, and first epoch after the range; None: no end.
        staircase: set the rate once per epoch; if False, set it for each batch, at a fractional epoch.
        momentum_correction: scale an optimizer's momentum like the rate during the batch in which the rate changes.
        steps_per_epoch: number of batches of an epoch; required without a staircase if Keras does not know it.
    Raises: ValueError without an initial rate.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        self._momentum_before: float | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Look up the number of batches of an epoch, if needed. Raises: ValueError if Keras does not know it."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(f"pass steps_per_epoch to {type(self).__name__}: Keras does not know it")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Store the number of the epoch."""
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of this epoch or batch, if the epoch is in the range."""
        is_over = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or is_over:
            return
        if self.staircase and batch == 0:
            self._set_rate(self.current_epoch)
        elif not self.staircase:
            self._set_rate(self.current_epoch + batch / (self.steps_per_epoch or 1))

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Restore the optimizer's own momentum."""
        if self._momentum_before is not None:
            _set(self.model.optimizer, "momentum", self._momentum_before)
            self._momentum_before = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the learning rate to the metrics."""
        if logs is not None:
            logs["lr"] = _get(self.model.optimizer, "learning_rate")

    def _set_rate(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before, after = _get(optimizer, "learning_rate"), self.initial_lr * self.multiplier(epoch)
        _set(optimizer, "learning_rate", after)
        if self.momentum_correction and before and getattr(optimizer, "momentum", None) is not None:
            self._momentum_before = _get(optimizer, "momentum")
            _set(optimizer, "momentum", self._momentum_before * after / before)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size()` to `initial_lr` over the first epochs.

    Args:
        initial_lr: learning rate at the end of the warmup.
        warmup_epochs: number of epochs of the warmup.
        momentum_correction, steps_per_epoch: as for `LearningRateScheduleCallback`.
        verbose: 1 prints the end of the warmup on rank 0.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            reached = epoch + 1.0 / (self.steps_per_epoch or 1)  # at the end of the batch
            return float((reached * (size() - 1) / warmup_epochs + 1) / size())

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the learning rate to the metrics, and print the end of the warmup."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and rank() == 0:
            rate = _get(self.model.optimizer, "learning_rate")
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(_ModelCheckpoint):
    """Saves the best model; Horovod's estimators set `filepath` before the training.

    Args:
        monitor, verbose, save_weights_only, mode, save_freq: as tf.keras.callbacks.ModelCheckpoint.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        # Keras 3 requires a file name with a suffix from the start
        super().__init__(
            filepath="best.weights.h5" if save_weights_only else "best.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = None


def _get(optimizer: Any, name: str) -> float:
    """Return a numeric attribute of an optimizer as a float; the attribute may be a variable."""
    value = getattr(optimizer, name)
    return float(value.numpy() if hasattr(value, "numpy") else value)


def _set(optimizer: Any, name: str, value: float) -> None:
    held = getattr(optimizer, name)
    if hasattr(held, "assign"):
        held.assign(value)
    else:
        setattr(optimizer, name, value)
