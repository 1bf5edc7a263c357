"""Ways to reduce tensors and to train a model in TensorFlow, each with the same methods; a process has one of them.

Where: `tensorflow_rank` makes the one that its gang is named after. Making it imports the library and forms the group.
The model is that of Keras' example `mnist_convnet` in its older form with a dense layer of 128, 1.2 million parameters,
without drop-out: losses of all ways can be compared then.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from benchmarks.frameworks.tensorflow_gang import MICROBATCHES, PARTITIONS

IMAGE_SHAPE = (28, 28, 1)
NUM_CLASSES = 10
_RATE = 0.01  # rounding grows with it: another order of sums would soon give another loss
_GROUP_KEY = 1_000_000  # of collectives; strategies count theirs from 1
_SMP_THREADS = 4  # between operations: a step waits in one while others run its functions

Step = Callable[[Any, Any], Any]
"""From images, shape [batch, 28, 28, 1], and labels, shape [batch], to the mean loss of the whole batch."""


class Way(Protocol):
    """Abilities of a rank; all ranks call the same."""

    splits_batch: bool
    """Whether each rank takes a part of the batch; else each is given the whole."""

    def all_reduce(self, tensor: Any, key: int) -> Any:
        """Return the sum over all ranks of a float32 tensor. Calls of one `key` have one shape."""

    def trainer(self, batch: int) -> Step:
        """Return a function that trains a new model by one step on `batch` images of all ranks together."""


def make_way(name: str, rank: int, size: int) -> Way:
    """Give TensorFlow this process's share of the cores and make a way by its name, one of WAYS."""
    cores = sorted(os.sched_getaffinity(0))
    if name in PINNED:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(_SMP_THREADS if name == "smp" else 1)
    else:
        tf.config.threading.set_intra_op_parallelism_threads(max(1, len(cores) // size))
    return WAYS[name]()


class Smddp:
    """`smdistributed.dataparallel.tensorflow`, ours."""

    splits_batch = True

    def __init__(self) -> None:
        import smdistributed.dataparallel.tensorflow as sdp

        sdp.init()
        self._sdp = sdp

    def all_reduce(self, tensor: Any, key: int) -> Any:
        """Return the sum."""
        return self._sdp.allreduce(tensor, 0, 1, op=self._sdp.ReduceOp.SUM)

    def trainer(self, batch: int) -> Step:
        """Train as SageMaker's example does: a tape, and the average of the loss."""
        return _taped(self._sdp.DistributedGradientTape, self._sdp.oob_allreduce)


class Horovod:
    """`horovod.tensorflow`: ours, or the real one where the environment has it."""

    splits_batch = True

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        hvd.init()
        self._hvd = hvd

    def all_reduce(self, tensor: Any, key: int) -> Any:
        """Return the sum."""
        return self._hvd.allreduce(tensor, op=self._hvd.Sum, name=f"sum.{key}")

    def trainer(self, batch: int) -> Step:
        """Train as Horovod's example does: a tape, and the average of the loss."""
        return _taped(self._hvd.DistributedGradientTape, lambda loss: self._hvd.allreduce(loss, name="loss"))


class Mirrored:
    """TensorFlow's own collectives over gRPC, as MultiWorkerMirroredStrategy sets them up from TF_CONFIG."""

    splits_batch = True

    def __init__(self) -> None:
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        self._group = tf.constant(self._strategy.num_replicas_in_sync), tf.constant(_GROUP_KEY)

    def all_reduce(self, tensor: Any, key: int) -> Any:
        """Return the sum, by the operation alone: the strategy around it would only add to its time."""
        size, group = self._group
        return tf.raw_ops.CollectiveReduceV2(
            input=tensor,
            group_size=size,
            group_key=group,
            instance_key=key,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="ring",
        )

    def trainer(self, batch: int) -> Step:
        """Train in a loop of its own, as TensorFlow's tutorial of custom training does."""
        strategy = self._strategy
        with strategy.scope():
            model, optimizer = make_model(tf.keras.Model), make_optimizer()

        def on_replica(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(_losses(model, images, labels)) / batch
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        def step(images: Any, labels: Any) -> Any:
            losses = strategy.run(on_replica, args=(images, labels))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        return _function(step)


class Alone:
    """One process."""

    splits_batch = False

    def all_reduce(self, tensor: Any, key: int) -> Any:
        """Return the tensor."""
        return tensor

    def trainer(self, batch: int) -> Step:
        """Train with nothing around it."""
        return _taped(lambda tape: tape, lambda loss: loss)


class Smp:
    """`smdistributed.modelparallel.tensorflow`, ours: a pipeline of PARTITIONS with MICROBATCHES."""

    splits_batch = False

    def __init__(self) -> None:
        import smdistributed.modelparallel.tensorflow as smp

        smp.init({"partitions": PARTITIONS, "microbatches": MICROBATCHES, "pipeline": "interleaved"})
        self._smp = smp

    def all_reduce(self, tensor: Any, key: int) -> Any:
        """Raise NotImplementedError: its ranks hold other parts of one model."""
        raise NotImplementedError("ranks of a pipeline have nothing to sum")

    def trainer(self, batch: int) -> Step:
        """Train as AWS's example does."""
        model, optimizer = make_model(self._smp.DistributedModel), make_optimizer()

        @self._smp.step
        def forward_backward(images: Any, labels: Any) -> Any:
            loss = tf.reduce_mean(_losses(model, images, labels))
            return optimizer.get_gradients(loss, model.trainable_variables), loss

        def step(images: Any, labels: Any) -> Any:
            gradients, loss = forward_backward(images, labels)
            gradients = [one.accumulate() for one in gradients]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss.reduce_mean()

        return _function(step)


WAYS: dict[str, Callable[[], Way]] = {
    "smddp": Smddp,
    "horovod": Horovod,
    "tensorflow": Mirrored,
    "smp": Smp,
    "alone": Alone,
    "alone on one core": Alone,
}
PINNED = ("smp", "alone on one core")
"""Each rank has a core for itself, so that a rank that waits does not lend its core to the other."""


def make_model(base: Any) -> Any:
    """Return the model, with the same weights in every process.

    Args:
        base: tf.keras.Model or what stands in its place.
    """
    layers = tf.keras.layers

    def seeded(number: int) -> Any:
        return tf.keras.initializers.GlorotUniform(seed=number)

    class Digits(base):
        """Scores of images."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1 = layers.Conv2D(32, 3, activation="relu", kernel_initializer=seeded(1))
            self.conv2 = layers.Conv2D(64, 3, activation="relu", kernel_initializer=seeded(2))
            self.pool = layers.MaxPooling2D()
            self.flatten = layers.Flatten()
            self.dense1 = layers.Dense(128, activation="relu", kernel_initializer=seeded(3))
            self.dense2 = layers.Dense(NUM_CLASSES, kernel_initializer=seeded(4))

        def call(self, x: Any, training: Any = None) -> Any:
            """Return scores, shape [batch, 10]."""
            return self.dense2(self.dense1(self.flatten(self.pool(self.conv2(self.conv1(x))))))

    model = Digits()
    if base is tf.keras.Model:
        model(tf.zeros([1, *IMAGE_SHAPE]))
    return model


def make_optimizer() -> Any:
    """Return the optimizer of all ways."""
    return tf.keras.optimizers.SGD(_RATE)


def _taped(distribute: Callable[[Any], Any], average: Callable[[Any], Any]) -> Step:
    model, optimizer = make_model(tf.keras.Model), make_optimizer()

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(_losses(model, images, labels))
        weights = model.trainable_variables
        gradients = distribute(tape).gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return average(loss)

    return _function(step)


def _function(step: Step) -> Step:
    made: Step = tf.function(step)
    return made


def _losses(model: Any, images: Any, labels: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
