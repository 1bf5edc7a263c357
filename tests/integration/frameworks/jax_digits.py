"""Training program of jax: data parallel on digits, over the processes that `initialize()` finds without arguments."""

import argparse
import gzip
import json
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

HIDDEN = 32
NUM_CLASSES = 10


def read_digits(folder):
    """Return images of floats from 0 to 1, shape [5000, 784], and labels, shape [5000], shuffled."""
    with gzip.open(os.path.join(folder, "mnist_5k.csv.gz"), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    table = table[np.random.default_rng(7).permutation(len(table))]
    return table[:, :-1] / 255, table[:, -1].astype(np.int32)


def first_parameters():
    drawn = np.random.default_rng(11)
    return {
        "hidden": jnp.asarray(drawn.normal(0, 0.05, (784, HIDDEN)), jnp.float32),
        "output": jnp.asarray(drawn.normal(0, 0.2, (HIDDEN, NUM_CLASSES)), jnp.float32),
    }


def loss_of(parameters, images, labels):
    scores = jax.nn.relu(images @ parameters["hidden"]) @ parameters["output"]
    return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(len(labels)), labels])


@jax.jit
def step(parameters, images, labels):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, images, labels)
    return loss, jax.tree.map(lambda value, gradient: value - 0.2 * gradient, parameters, gradients)


def sums(mesh):
    """Return the psum over all devices, each of which contributes 2 to the power of its index."""
    here = NamedSharding(mesh, PartitionSpec("data"))
    own = [2.0 ** jax.process_index()] * jax.local_device_count()
    values = jax.make_array_from_process_local_data(here, np.asarray(own, np.float32))
    add = jax.jit(
        jax.shard_map(
            lambda value: jax.lax.psum(value, "data"),
            mesh=mesh,
            in_specs=PartitionSpec("data"),
            out_specs=PartitionSpec(),
        )
    )
    return add(values).tolist()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=120)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--out", default=os.environ.get("SM_MODEL_DIR"))
    parser.add_argument("--data", default=os.environ.get("SM_CHANNEL_DIGITS"))
    options = parser.parse_args()
    begun_s = time.monotonic()
    if not options.alone:
        jax.distributed.initialize()
    initialized_s = time.monotonic() - begun_s
    process, number = jax.process_index(), jax.process_count()
    mesh = Mesh(np.asarray(jax.devices()), ("data",))
    found = {
        "process": process,
        "number": number,
        "devices": [jax.local_device_count(), jax.device_count()],
        "initialized_s": initialized_s,
        "sums": sums(mesh),
    }
    images, labels = read_digits(options.data)
    share = options.batch // number
    placed = NamedSharding(mesh, PartitionSpec("data"))
    parameters = jax.device_put(first_parameters(), NamedSharding(mesh, PartitionSpec()))
    losses = []
    for index in range(options.steps):
        begin = index * options.batch + process * share
        parts = [
            jax.make_array_from_process_local_data(placed, values[begin : begin + share]) for values in (images, labels)
        ]
        loss, parameters = step(parameters, *parts)
        losses.append(float(loss))
        print(f"step {index} loss={losses[-1]:.6f}", flush=True)
    found["losses"] = losses
    found["weights"] = [float(jnp.abs(value).sum()) for value in jax.tree.leaves(parameters)]
    with open(os.path.join(options.out, f"process-{process}.json"), "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
