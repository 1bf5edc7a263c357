"""Training program as in AWS's example for TensorFlow, on digits of a channel instead of downloaded ones."""

import argparse
import gzip
import json
import os

import numpy as np

# SMP: Import TF2.x API
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf

tf.random.set_seed(1234)

# SMP: Initialize
smp.init()

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--mp_parameters", default="")
parser.add_argument("--model_dir")  # added by SageMaker's TensorFlow estimator
options = parser.parse_args()

with gzip.open(os.path.join(os.environ["SM_CHANNEL_DIGITS"], "mnist_5k.csv.gz"), "rt") as file:
    table = np.loadtxt(file, delimiter=",", dtype=np.float32)
table = table[np.random.default_rng(7).permutation(len(table))]
images, labels = table[:, :-1].reshape(-1, 28, 28) / 255.0, table[:, -1].astype(np.uint8)
(x_train, y_train), (x_test, y_test) = (images[:4000], labels[:4000]), (images[4000:], labels[4000:])

# Add a channels dimension
x_train = x_train[..., tf.newaxis]
x_test = x_test[..., tf.newaxis]

# SMP: Seed the shuffle with smp.dp_rank(), and drop_remainder
train_ds = (
    tf.data.Dataset.from_tensor_slices((x_train, y_train))
    .shuffle(10000, seed=smp.dp_rank())
    .batch(100, drop_remainder=True)
)
test_ds = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(100, drop_remainder=True)


# SMP: Define smp.DistributedModel the same way as Keras sub-classing API
class MyModel(smp.DistributedModel):
    def __init__(self):
        super(MyModel, self).__init__()  # noqa: UP008 - as the example has it
        self.conv = tf.keras.layers.Conv2D(8, 3, activation="relu")
        self.flatten = tf.keras.layers.Flatten()
        self.dense1 = tf.keras.layers.Dense(32)
        self.dense2 = tf.keras.layers.Dense(10)

    def call(self, x, training=None):
        x = self.conv(x)
        x = self.flatten(x)
        x = self.dense1(x)
        return self.dense2(x)


model = MyModel()

loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam()
test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")
train_loss = tf.keras.metrics.Mean(name="train_loss")
train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")

checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)
ckpt_manager = smp.CheckpointManager(checkpoint, os.path.join(os.environ["SM_MODEL_DIR"], "checkpoints"))


# SMP: Define smp.step. Return any tensors needed outside
@smp.step
def get_grads(images, labels):
    predictions = model(images, training=True)
    loss = loss_object(labels, predictions)

    grads = optimizer.get_gradients(loss, model.trainable_variables)
    return grads, loss, predictions


@tf.function
def train_step(images, labels):
    gradients, loss, predictions = get_grads(images, labels)

    # SMP: Accumulate the gradients across microbatches
    gradients = [g.accumulate() for g in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905 - as the example has it

    # SMP: Average the loss across microbatches
    train_loss(loss.reduce_mean())

    # SMP: Merge predictions across microbatches
    train_accuracy(labels, predictions.merge())
    return loss.reduce_mean()


# SMP: Define the smp.step for evaluation. Optionally specify an input signature.
@smp.step(
    input_signature=[
        tf.TensorSpec(shape=[None, 28, 28, 1], dtype=tf.float32),
        tf.TensorSpec(shape=[None], dtype=tf.uint8),
    ]
)
def test_step(images, labels):
    predictions = model(images, training=False)
    t_loss = loss_object(labels, predictions)
    test_accuracy(labels, predictions)
    return t_loss


losses = []
for _epoch in range(options.epochs):
    for images, labels in train_ds:
        losses.append(float(train_step(images, labels)))
    for test_images, test_labels in test_ds:
        test_step(test_images, test_labels)

ckpt_manager.save()
model.save_model(os.path.join(os.environ["SM_MODEL_DIR"], "1"))
facts = {
    "rank": [smp.rank(), smp.size(), smp.mp_rank(), smp.dp_rank(), smp.local_rank()],
    "partitions": smp.state.cfg.partitions,
    "mp_parameters": os.environ.get("SM_HP_MP_PARAMETERS", ""),
    "losses": losses,
    "accuracy": float(test_accuracy.result()),
    "variables": [list(one.shape) for one in model.variables],
    "keras": tf.keras.__name__,
}
with open(os.path.join(os.environ["SM_MODEL_DIR"], f"rank-{smp.rank()}.json"), "w") as file:
    json.dump(facts, file)
smp.barrier()
