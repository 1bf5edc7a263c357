"""Models and data of the ranks of test_smp_tensorflow: 5000 handwritten digits."""

import gzip
import os
import socket

import numpy as np
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf

BATCH = 40
IS_LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
"""Dropout of legacy Keras draws from a counter of the process, which differs between graphs: models omit it."""


def start(**config):
    """Seed all random generators and initialise SMP with a configuration, at a new port if it was initialised."""
    if smp.is_initialized():  # the old port may stay bound on rank 0 for a while
        os.environ["MASTER_PORT"] = smp.allgather(free_port())[0]
        smp.shutdown()
    tf.keras.utils.set_random_seed(3)
    smp.init(config)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def digits():
    """Return images, shape [5000, 28, 28, 1], and labels, shape [5000], in random order."""
    with gzip.open(os.environ["CLARY_TEST_DIGITS"], "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    table = table[np.random.default_rng(7).permutation(len(table))]
    return table[:, :-1].reshape(-1, 28, 28, 1) / 255, table[:, -1].astype(np.int64)


def glorot(seed):
    return tf.keras.initializers.GlorotNormal(seed=seed)


def convolutions(base):
    """Return a convolutional model class like AWS's examples, derived from smp.DistributedModel or tf.keras.Model."""

    class Convolutions(base):
        def __init__(self):
            super().__init__()
            self.conv = tf.keras.layers.Conv2D(4, 3, activation="relu", kernel_initializer=glorot(1))
            self.norm = tf.keras.layers.BatchNormalization()
            self.flatten = tf.keras.layers.Flatten()
            self.dense1 = tf.keras.layers.Dense(32, activation="relu", kernel_initializer=glorot(2))
            self.dense2 = tf.keras.layers.Dense(10, kernel_initializer=glorot(3))

        def call(self, x, training=None):
            x = self.norm(self.conv(x), training=training)
            x = x + tf.nn.relu(x)
            return self.dense2(self.dense1(self.flatten(x)))

    return Convolutions


def perceptron(base, *, by_hand=()):
    """Return a model class of dense layers, of which one is called twice and two share one matrix.

    Args:
        by_hand: partition of each of the four steps of `call`.
    """

    class Tied(tf.keras.layers.Layer):
        """Multiplies by the transposed kernel of another layer."""

        def __init__(self, other):
            super().__init__()
            self.other = other

        def call(self, x):
            return tf.matmul(x, self.other.kernel, transpose_b=True)

    class Perceptron(base):
        def __init__(self):
            super().__init__()
            self.first = tf.keras.layers.Dense(16, activation="tanh", kernel_initializer=glorot(4))
            self.again = tf.keras.layers.Dense(16, activation="relu", kernel_initializer=glorot(5))
            self.tied = Tied(self.first)
            self.last = tf.keras.layers.Dense(10, kernel_initializer=glorot(6))

        def call(self, x, training=None):
            x = tf.reshape(x, [-1, 784])
            places = iter(by_hand)
            x = self._at(places, lambda: self.first(x))
            y = self._at(places, lambda: self.again(self.again(x)) + x)
            z = self._at(places, lambda: self.tied(y))
            return self._at(places, lambda: self.last(z))

        def _at(self, places, run):
            place = next(places, None)
            if place is None or base is tf.keras.Model:
                return run()
            with smp.partition(place):
                return run()

    return Perceptron


def recurrent(base):
    """Return a model class with an embedding, a loop and dropout."""

    class Recurrent(base):
        def __init__(self):
            super().__init__()
            self.embedding = tf.keras.layers.Embedding(16, 8, embeddings_initializer=glorot(7))
            self.lstm = tf.keras.layers.LSTM(8, kernel_initializer=glorot(8), recurrent_initializer=glorot(9))
            self.hidden = tf.keras.layers.Dense(24, activation="relu", kernel_initializer=glorot(10))
            self.drop = tf.keras.layers.Dropout(0.0 if IS_LEGACY else 0.5, seed=11)
            self.last = tf.keras.layers.Dense(10, kernel_initializer=glorot(12))

        def call(self, x, training=None):
            x = tf.cast(tf.reduce_mean(x, axis=[2, 3]) * 40, tf.int32) % 16
            return self.last(self.drop(self.hidden(self.lstm(self.embedding(x))), training=training))

    return Recurrent


LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def train_alone(make, batches, num_microbatches, learning_rate=0.01, *, clip_norm=None):
    """Train an unpartitioned model on this rank; return the loss of every batch, and the model."""
    model, optimizer = make(tf.keras.Model)(), tf.keras.optimizers.Adam(learning_rate)

    @tf.function
    def step(images, labels):
        total, losses = None, []
        for x, y in zip(tf.split(images, num_microbatches), tf.split(labels, num_microbatches), strict=True):
            with tf.GradientTape() as tape:
                losses.append(LOSS(y, model(x, training=True)))
            found = [tf.convert_to_tensor(one) for one in tape.gradient(losses[-1], model.trainable_variables)]
            total = found if total is None else [one + other for one, other in zip(total, found, strict=True)]
        means = [one / num_microbatches for one in total]
        if clip_norm:
            means, _ = tf.clip_by_global_norm(means, clip_norm)
        optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))
        return tf.add_n(losses) / num_microbatches

    return [float(step(*batch)) for batch in batches], model


def trainer(make, learning_rate=0.01, *, by_tape=False, clip_norm=None):
    """Return a distributed model, functions that train it on a batch and score a batch, and its checkpoint."""
    model, optimizer = make(smp.DistributedModel)(), tf.keras.optimizers.Adam(learning_rate)

    @smp.step
    def forward_backward(images, labels):
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = LOSS(labels, predictions)
        if by_tape:
            return tape.gradient(loss, model.trainable_variables), loss
        return optimizer.get_gradients(loss, model.trainable_variables), loss

    @tf.function
    def train(images, labels):
        gradients, loss = forward_backward(images, labels)
        gradients = [one.accumulate() for one in gradients]
        if clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, clip_norm)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss.reduce_mean()

    @smp.step
    def forward(images):
        return model(images, training=False)

    model_and_optimizer = tf.train.Checkpoint(model=model, optimizer=optimizer)
    return model, train, lambda images: forward(images).merge(), model_and_optimizer
