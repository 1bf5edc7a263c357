"""Training program of MXNet: gluon on digits, with parameter servers, as users of AWS's images write it."""

import argparse
import gzip
import json
import os

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd


def read_digits(folder, host, num_hosts):
    """Return this host's images of floats from 0 to 1, shape [5000 / num_hosts, 1, 28, 28], and labels."""
    with gzip.open(os.path.join(folder, "mnist_5k.csv.gz"), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    table = table[np.random.default_rng(7).permutation(len(table))][host::num_hosts]
    return table[:, :-1].reshape(-1, 1, 28, 28) / 255, table[:, -1]


def make_net():
    net = gluon.nn.HybridSequential()
    with net.name_scope():
        net.add(
            gluon.nn.Conv2D(channels=8, kernel_size=5, activation="relu"),
            gluon.nn.MaxPool2D(pool_size=4, strides=4),
            gluon.nn.Flatten(),
            gluon.nn.Dense(10),
        )
    return net


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--kvstore", default="dist_sync")
    parser.add_argument("--model-dir", default=os.environ["SM_MODEL_DIR"])
    options = parser.parse_args()
    hosts, host = json.loads(os.environ["SM_HOSTS"]), os.environ["SM_CURRENT_HOST"]

    mx.random.seed(hosts.index(host))  # hosts differ until the servers synchronise them
    store = mx.kv.create(options.kvstore)
    net = make_net()
    net.initialize(mx.init.Xavier(magnitude=2.24))
    net(nd.zeros((1, 1, 28, 28)))
    images, labels = read_digits(os.environ["SM_CHANNEL_DIGITS"], hosts.index(host), len(hosts))
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(images, labels), options.batch_size, last_batch="discard")
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=store)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for epoch in range(options.epochs):
        total = 0.0
        for batch, answers in data:
            with autograd.record():
                loss = loss_of(net(batch), answers)
            loss.backward()
            trainer.step(batch.shape[0] * store.num_workers)
            total += float(loss.mean().asscalar())
        losses.append(total / len(data))
        print(f"epoch {epoch} loss={losses[-1]:.4f}", flush=True)
    mx.nd.waitall()
    accuracy = float((net(nd.array(images)).argmax(axis=1).asnumpy() == labels).mean())
    facts = {
        "rank": store.rank,
        "workers": store.num_workers,
        "kind": store.type,
        "losses": losses,
        "accuracy": accuracy,
        # Written as text, which keeps a 32-bit float unchanged.
        "weights": {
            name.split("_", 1)[1]: value.data().asnumpy().tolist()
            for name, value in sorted(net.collect_params().items())
        },
    }
    with open(os.path.join(options.model_dir, f"{host}.json"), "w") as file:
        json.dump(facts, file)


if __name__ == "__main__":
    main()
