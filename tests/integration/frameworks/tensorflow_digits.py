"""Training program of TensorFlow: digits, data parallel in each way that scripts use.

Every way starts from the same weights and uses the same images in each step, so that all have the losses of one
process.
"""

import argparse
import gzip
import json
import os
import socket
import time

import numpy as np
import tensorflow as tf

HIDDEN = 32
NUM_CLASSES = 10
RATE = 0.1
MOMENTUM = 0.5
PIXELS = 784


def read_digits(folder):
    """Return images of floats from 0 to 1, shape [5000, 784], and labels, shape [5000], shuffled."""
    with gzip.open(os.path.join(folder, "mnist_5k.csv.gz"), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    table = table[np.random.default_rng(7).permutation(len(table))]
    return table[:, :-1] / 255, table[:, -1].astype(np.int64)


def first_weights():
    drawn = np.random.default_rng(11)
    return [
        drawn.normal(0, 0.05, (PIXELS, HIDDEN)).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        drawn.normal(0, 0.2, (HIDDEN, NUM_CLASSES)).astype(np.float32),
        np.zeros(NUM_CLASSES, np.float32),
    ]


def make_model():
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [tf.keras.Input((PIXELS,)), layers.Dense(HIDDEN, activation="relu"), layers.Dense(NUM_CLASSES)]
    )
    model.set_weights(first_weights())
    return model


def make_optimizer():
    return tf.keras.optimizers.SGD(RATE, momentum=MOMENTUM)


def mean_loss(labels, scores):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))


class Batches:
    """Images and labels of each step: one rank's part of the whole batch."""

    def __init__(self, options, rank, size):
        self.images, self.labels = read_digits(options.data)
        self.share = options.batch // size
        self.begin = rank * self.share
        self.batch, self.steps = options.batch, options.steps

    def __iter__(self):
        for step in range(self.steps):
            begin = step * self.batch + self.begin
            yield self.images[begin : begin + self.share], self.labels[begin : begin + self.share]

    def dataset(self):
        """Return the same batches as a tf.data.Dataset."""
        images, labels = map(np.concatenate, zip(*self, strict=True))
        return tf.data.Dataset.from_tensor_slices((images, labels)).batch(self.share)


class Losses(tf.keras.callbacks.Callback):
    """Records the loss of each epoch of `fit`; each epoch has one step."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(float(logs["loss"]))


def fit(model, optimizer, batches, callbacks=()):
    """Train by `fit` with one epoch per step, because `fit` reports mean losses of epochs."""
    model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    kept = Losses()
    for images, labels in batches:
        data = tf.data.Dataset.from_tensors((images, labels))
        model.fit(data, epochs=1, verbose=0, callbacks=[*callbacks, kept])
    return kept.losses


def train_alone(options):
    model, optimizer = make_model(), make_optimizer()

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, model(images, training=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    losses = [float(step(images, labels)) for images, labels in Batches(options, 0, 1)]
    return {"rank": 0, "size": 1, "losses": losses}, model.get_weights()


def train_smddp(options):
    """Train as SageMaker's example of MNIST does: a tape, and variables broadcast after the first step."""
    import smdistributed.dataparallel.tensorflow as sdp

    sdp.init()
    model, optimizer = make_model(), make_optimizer()
    if sdp.rank() != 0:
        model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    sdp.broadcast_variables(model.variables, root_rank=0)

    def step(images, labels, is_first):
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, model(images, training=True))
        tape = sdp.DistributedGradientTape(tape)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        if is_first:
            sdp.broadcast_variables(model.variables, root_rank=0)
            sdp.broadcast_variables(as_list(optimizer.variables), root_rank=0)
        return sdp.oob_allreduce(loss)

    run = step if options.eager else tf.function(step)
    losses = [
        float(run(images, labels, index == 0))
        for index, (images, labels) in enumerate(Batches(options, sdp.rank(), sdp.size()))
    ]
    found = {"rank": sdp.rank(), "size": sdp.size(), "local": [sdp.local_rank(), sdp.local_size()], "losses": losses}
    return found, model.get_weights()


def train_smddp_fit(options):
    """Train by `fit` with SMDDP's optimizer."""
    import smdistributed.dataparallel.tensorflow as sdp

    sdp.init()
    model = make_model()
    batches = Batches(options, sdp.rank(), sdp.size())
    losses = fit(model, sdp.DistributedOptimizer(make_optimizer()), batches)
    mean = [float(sdp.oob_allreduce(tf.constant(loss))) for loss in losses]
    return {"rank": sdp.rank(), "size": sdp.size(), "losses": mean}, model.get_weights()


def train_horovod(options):
    """Train as Horovod's examples of TensorFlow 2 do: a tape, and variables broadcast after the first step."""
    import horovod.tensorflow as hvd

    hvd.init()
    model, optimizer = make_model(), make_optimizer()
    if hvd.rank() != 0:
        model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    hvd.broadcast_variables(model.variables, root_rank=0)

    def step(images, labels, is_first):
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        if is_first:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(as_list(optimizer.variables), root_rank=0)
        return hvd.allreduce(loss, name="loss")

    run = step if options.eager else tf.function(step)
    losses = [
        float(run(images, labels, index == 0))
        for index, (images, labels) in enumerate(Batches(options, hvd.rank(), hvd.size()))
    ]
    found = {"rank": hvd.rank(), "size": hvd.size(), "local": [hvd.local_rank(), hvd.local_size()], "losses": losses}
    return found, model.get_weights()


def train_horovod_fit(options):
    """Train by `fit` with Horovod's optimizer and callbacks."""
    import horovod.tensorflow.keras as hvd

    hvd.init()
    model = make_model()
    if hvd.rank() != 0:
        model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    callbacks = [hvd.callbacks.MetricAverageCallback()]
    first = tf.data.Dataset.from_tensors((np.zeros((1, PIXELS), np.float32), np.zeros(1, np.int64)))
    model.compile(tf.keras.optimizers.SGD(0.0), "mse")
    model.fit(first, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    batches = Batches(options, hvd.rank(), hvd.size())
    losses = fit(model, hvd.DistributedOptimizer(make_optimizer()), batches, callbacks)
    found = {"rank": hvd.rank(), "size": hvd.size(), "local": [hvd.local_rank(), hvd.local_size()], "losses": losses}
    return found, model.get_weights()


def train_mirrored(options):
    """Train in a custom loop under MultiWorkerMirroredStrategy."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task, size = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
    with strategy.scope():
        model, optimizer = make_model(), make_optimizer()

    @tf.function
    def step(images, labels):
        def on_replica(images, labels):
            with tf.GradientTape() as tape:
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
                loss = tf.reduce_sum(each) / options.batch
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        losses = strategy.run(on_replica, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    batches = Batches(options, task, size)
    data = strategy.distribute_datasets_from_function(lambda _: batches.dataset())
    losses = [float(step(images, labels)) for images, labels in data]
    return {"rank": task, "size": size, "losses": losses}, model.get_weights()


def train_mirrored_fit(options):
    """Train by `fit` of legacy Keras under MultiWorkerMirroredStrategy."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task, size = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
    with strategy.scope():
        model = make_model()
        model.compile(make_optimizer(), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    kept = Losses()
    whole = Batches(options, 0, 1)
    for images, labels in whole:
        data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(options.batch)
        model.fit(data, epochs=1, verbose=0, callbacks=[kept])  # `fit` shards the batch itself
    return {"rank": task, "size": size, "losses": kept.losses}, model.get_weights()


def train_server(options):
    """Train under ParameterServerStrategy: the master coordinates, the workers compute, servers keep the variables.

    SageMaker's launcher starts the servers, and calls the coordinator "master" where TensorFlow 2 says "chief".
    """
    config = json.loads(os.environ["TF_CONFIG"])
    places = dict(config["cluster"])
    places["chief"] = places.pop("master")
    kind, index = config["task"]["type"], config["task"]["index"]
    cluster = tf.train.ClusterSpec(places)
    if kind == "worker":
        return serve_until_end(cluster, index, places["chief"][0])
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="chief", task_id=0)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = [tf.Variable(value) for value in first_weights()]
        speeds = [tf.Variable(tf.zeros_like(value)) for value in first_weights()]

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(images @ weights[0] + weights[1])
            loss = mean_loss(labels, hidden @ weights[2] + weights[3])
        for weight, speed, gradient in zip(weights, speeds, tape.gradient(loss, weights), strict=True):
            weight.assign_add(speed.assign(MOMENTUM * speed - RATE * gradient))
        return loss

    losses = []
    for images, labels in Batches(options, 0, 1):
        loss = coordinator.schedule(step, args=(tf.constant(images), tf.constant(labels)))
        coordinator.join()  # one step at a time, so that each starts from the weights of the step before
        losses.append(float(loss.fetch()))
    found = {"rank": 0, "size": len(places["worker"]), "losses": losses, "devices": [one.device for one in weights]}
    return found, [weight.numpy() for weight in weights]


def serve_until_end(cluster, index, chief):
    """Serve the coordinator as a worker until its port is closed."""
    tf.distribute.Server(cluster, job_name="worker", task_index=index)
    host, _, port = chief.rpartition(":")
    was_there = False
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            was_there = True
        except OSError:
            if was_there:
                return {"rank": index + 1, "served": True}, []
        time.sleep(0.5)


def train_graph(options):
    """Train like TensorFlow 1 scripts: one graph per host, variables on servers, hosts do not wait for each other."""
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    config = json.loads(os.environ["TF_CONFIG"])
    kind, index = config["task"]["type"], config["task"]["index"]
    cluster = tf.train.ClusterSpec(config["cluster"])
    server = tf.distribute.Server(cluster, job_name=kind, task_index=index)
    rank = 0 if kind == "master" else index + 1
    size = 1 + len(config["cluster"]["worker"])
    place = v1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:{kind}/task:{index}")
    with v1.device(place):
        images, labels = v1.placeholder(tf.float32, [None, PIXELS]), v1.placeholder(tf.int64, [None])
        weights = [v1.get_variable(f"w{at}", initializer=value) for at, value in enumerate(first_weights())]
        hidden = tf.nn.relu(images @ weights[0] + weights[1])
        loss = mean_loss(labels, hidden @ weights[2] + weights[3])
        total = v1.train.get_or_create_global_step()
        step = v1.train.MomentumOptimizer(RATE, MOMENTUM).minimize(loss, global_step=total)
        num_done = v1.get_variable("num_done", initializer=0)
        say_done = num_done.assign_add(1, use_locking=True)
    losses = []
    with v1.train.MonitoredTrainingSession(master=server.target, is_chief=rank == 0) as session:
        for own_images, own_labels in Batches(options, rank, size):
            losses.append(float(session.run([loss, step], {images: own_images, labels: own_labels})[0]))
        session.run(say_done)
        while rank == 0 and session.run(num_done) < size:  # the servers end with the master
            time.sleep(0.1)
        last, num_steps = session.run([weights, total]) if rank == 0 else ([], 0)
    devices = [weight.device for weight in weights]
    return {"rank": rank, "size": size, "losses": losses, "num_steps": int(num_steps), "devices": devices}, last


def as_list(variables):
    """Return an optimizer's variables, which some versions provide by a method."""
    return list(variables() if callable(variables) else variables)


WAYS = {
    "alone": train_alone,
    "smddp": train_smddp,
    "smddp_fit": train_smddp_fit,
    "horovod": train_horovod,
    "horovod_fit": train_horovod_fit,
    "mirrored": train_mirrored,
    "mirrored_fit": train_mirrored_fit,
    "server": train_server,
    "graph": train_graph,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=WAYS, default="alone")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=120)
    parser.add_argument("--eager", type=int, default=0)
    parser.add_argument("--out", default=os.environ.get("SM_MODEL_DIR"))
    parser.add_argument("--data", default=os.environ.get("SM_CHANNEL_DIGITS"))
    parser.add_argument("--model_dir")  # added by SageMaker's TensorFlow estimator
    options = parser.parse_args()
    tf.config.threading.set_inter_op_parallelism_threads(2 if "mirrored" in options.way else 1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    found, weights = WAYS[options.way](options)
    found["keras"] = tf.keras.__version__ if hasattr(tf.keras, "__version__") else ""
    found["weights"] = [float(np.abs(weight).sum()) for weight in weights]
    for index, loss in enumerate(found.get("losses", [])):
        print(f"step {index} loss={loss:.6f}", flush=True)
    with open(os.path.join(options.out, f"rank-{found['rank']}.json"), "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
