"""`smp.CheckpointManager`: checkpoints of a cut model, with one folder per part.

Where: scripts make a manager for a tf.train.Checkpoint. Files of part i are in `directory`/mp_rank_i; the first replica
of a part writes the files, and all replicas of the part read them.

[Note: removal] A part removes earlier checkpoints only after all parts have saved a later one. If each part removed its
own at once, a failed save, or a kill between two parts' saves, could leave no checkpoint that all parts have.

Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_tensorflow.rst`.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import tensorflow as tf

from clary.train.parallel.errors import CheckpointError
from clary.train.parallel.layout.mesh import Along
from clary.train.tf_parallel import session
from clary.train.tf_parallel.checkpoint_files import bring_to_replicas, check_cut, complete_ones, write_cut

_LOG = logging.getLogger("clary.smp")


class CheckpointManager(tf.train.CheckpointManager):
    """A tf.train.CheckpointManager of this rank's part. All ranks make it, save and restore together.

    Args:
        checkpoint: a tf.train.Checkpoint, or a model alone.
        directory: the parent of the folders of all parts.
        max_to_keep: number of checkpoints to keep; None for all. Others are removed once all parts are saved.
        checkpoint_name: prefix of file names, before the number.
    """

    def __init__(
        self,
        checkpoint: Any,
        directory: str = "/opt/ml/checkpoints",
        max_to_keep: int | None = None,
        checkpoint_name: str = "ckpt",
    ) -> None:
        self._links = session.current().links
        self._folder = os.path.join(str(directory), f"mp_rank_{self._links.group_rank(Along.MP)}")
        if not isinstance(checkpoint, tf.train.Checkpoint):
            checkpoint = tf.train.Checkpoint(model=checkpoint)
        super().__init__(checkpoint, self._folder, max_to_keep, checkpoint_name=checkpoint_name)

    def save(self, *args: Any, **kwargs: Any) -> str:
        """Save this rank's part, and return its path. All ranks call it, once the model is cut.

        Raises: CheckpointError before the cut, and on all ranks if any rank could not save; `restore` skips a
            checkpoint that a part lacks.
        """
        facts = _facts()
        is_first = self._links.group_rank(Along.DP) == 0
        path, failure = "", ""
        if is_first:
            try:
                path = str(super().save(*args, **kwargs))
                write_cut(self._folder, facts)
            except Exception as error:  # noqa: BLE001 - told to all ranks, which raise
                failure = f"rank {self._links.rank} in {self._folder}: {type(error).__name__}: {error}"
        told = self._links.allgather((path, failure), Along.WORLD)
        failures = [one for _, one in told if one]
        if failures:
            raise CheckpointError(f"the checkpoint was not saved: {'; '.join(failures)}")
        if is_first:
            self._remove_earlier()
        return str(told[self._links.global_rank(Along.DP, 0)][0])

    def _remove_earlier(self) -> None:
        if not self._max_to_keep or len(self.checkpoints) <= self._max_to_keep:
            return
        try:
            super()._sweep()
            self._record_state()
        except (OSError, tf.errors.OpError) as error:  # the checkpoint is saved, and the other parts go on
            _LOG.warning("earlier checkpoints in %s stay: %s", self._folder, error)

    def _sweep(self) -> None:
        """Remove nothing when TensorFlow asks, before the other parts are saved. See [Note: removal]."""

    def restore(self, restore_prefix: str | None = None) -> Any:
        """Restore this rank's part, before the model's first step or later. All ranks call it.

        Args:
            restore_prefix: the name of a checkpoint, such as ckpt-2, or a path that ends with it; None for the newest
                checkpoint that all parts have.

        Returns: TensorFlow's status of the restoration; if there is no such checkpoint, an empty status, with a log
            message; before the cut, a status that has only `expect_partial`.
        Raises: CheckpointError for a checkpoint of a model that was cut differently; before the cut, the model's first
            step raises it.
        """
        names = self._links.allgather(complete_ones(self._folder), Along.WORLD)
        firsts = [names[ranks[0]] for ranks in self._links.mesh.groups(Along.DP)]
        common = [name for name in firsts[0] if all(name in one for one in firsts)]
        name = common[-1] if common else None
        if restore_prefix is not None:
            asked = os.path.basename(str(restore_prefix))
            name = asked if asked in common else None
        if name is None:
            _LOG.warning("no checkpoint %s in %s of all parts: nothing is restored", restore_prefix or "", self._folder)
            return self.checkpoint.restore(None)
        bring_to_replicas(self._links, self._folder)
        path = os.path.join(self._folder, name)
        now = session.current()
        if now.models:
            return self._read(path)
        now.waiting.append(lambda: self._read(path))
        return _Later()

    def _read(self, path: str) -> Any:
        check_cut(self._folder, _facts())
        for optimizer in _optimizers(self.checkpoint):
            _build(optimizer)
        return self.checkpoint.restore(path)


class _Later:
    """The status of a restoration that is delayed until the model's first step."""

    def expect_partial(self) -> _Later:
        """Do nothing, since a checkpoint may always have more values than the program."""
        return self


def _facts() -> dict[str, Any]:
    """Return the properties of the cut that must be equal for a restoration."""
    now = session.current()
    if not now.models:
        raise CheckpointError("the model is not cut yet: save after its first step")
    return {
        "partitions": now.configuration.partitions,
        "variables": [
            f"{number} {list(one.shape)}"
            for model in now.models
            for number, one in enumerate(model.all_variables)
            if model.cut.part_of(one) == now.part
        ],
    }


def _optimizers(checkpoint: Any) -> list[Any]:
    """Return the Keras optimizers in a checkpoint."""
    kinds = (tf.keras.optimizers.Optimizer,)
    return [one for one in vars(checkpoint).values() if isinstance(one, kinds)]


def _build(optimizer: Any) -> None:
    """Create an optimizer's variables now, since with Keras 3 its first step would be too late to restore them."""
    variables = [one for model in session.current().models for one in model.trainable_variables]
    if not getattr(optimizer, "built", False) and variables:
        optimizer.build(variables)
