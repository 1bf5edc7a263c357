"""Program of MXNet with Horovod: every kind of operation, then a training on digits for each way to average.

    horovod_mxnet_program.py FOLDER_OF_DIGITS OUT [--dies]

Writes OUT/rank-N.json. One process without Horovod's variables trains on the whole batches, for comparison.
"""

import gzip
import json
import os
import signal
import sys

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

BATCH, STEPS = 120, 20


def check_operations():
    """Assert results of all operations, on any number of ranks."""
    rank, size = hvd.rank(), hvd.size()
    ranks = np.arange(size)
    for dtype in ("float32", "float64", "float16", "int32", "int64", "uint8"):
        own = mx.nd.full((3, 5), rank + 1, dtype=dtype)
        total = hvd.allreduce(own, op=hvd.Sum, name=f"sum.{dtype}")
        assert total.dtype == own.dtype
        assert (total.asnumpy() == (ranks + 1).sum()).all(), total
        assert (own.asnumpy() == rank + 1).all(), "the array was changed"
    own = mx.nd.arange(10) * (rank + 1)
    kept = own
    own += 1  # still being computed when the reduction starts
    hvd.allreduce_(own, name="in place")
    assert kept is own
    assert np.allclose(own.asnumpy(), np.arange(10) * (ranks + 1).mean() + 1)
    assert np.allclose((own * 2).asnumpy(), 2 * own.asnumpy())
    scaled = hvd.allreduce(mx.nd.ones(4), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0, name="scaled")
    assert np.allclose(scaled.asnumpy(), 1.5 * size)
    pair = [mx.nd.full((2,), rank), mx.nd.full((3,), rank, dtype="float64")]
    hvd.grouped_allreduce_(pair, op=hvd.Max, name="largest")
    assert all((one.asnumpy() == size - 1).all() for one in pair)
    assert (
        hvd.allreduce(mx.nd.full((2,), rank + 1), op=hvd.Product, name="product").asnumpy() == np.prod(ranks + 1)
    ).all()
    gathered = hvd.allgather(mx.nd.full((rank + 1, 2), rank), name="uneven")
    assert (gathered.asnumpy() == np.repeat(ranks, ranks + 1)[:, None]).all()
    assert (hvd.broadcast(mx.nd.full((2, 2), rank), size - 1, name="last").asnumpy() == size - 1).all()
    rows, counts = hvd.alltoall(mx.nd.full((size,), rank), splits=[1] * size, name="each")
    assert (rows.asnumpy() == ranks).all()
    assert (counts.asnumpy() == 1).all()
    part = hvd.reducescatter(mx.nd.arange(2 * size), op=hvd.Sum, name="part")
    assert (part.asnumpy() == size * np.arange(2 * rank, 2 * rank + 2)).all()
    assert hvd.broadcast_object({"of": rank}, root_rank=0, name="facts") == {"of": 0}
    assert hvd.allgather_object("x" * rank, name="texts") == ["x" * each for each in ranks]
    if size > 1:  # otherwise the set equals the set of all ranks
        alone = hvd.add_process_set([0])
        if rank == 0:
            assert (hvd.allreduce(mx.nd.ones(2), op=hvd.Sum, process_set=alone, name="alone").asnumpy() == 1).all()
        hvd.remove_process_set(alone)
    for refused in (
        lambda: hvd.allreduce(mx.nd.ones(1), op=hvd.Adasum),
        lambda: hvd.allreduce(mx.nd.ones((2, 2)).tostype("row_sparse")),
    ):
        try:
            refused()
        except ValueError:
            continue
        raise AssertionError("expected a ValueError")


def make_net(seed):
    """Return a net whose initial values depend only on the seed, not on names of parameters."""
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(32, activation="relu", in_units=784), gluon.nn.Dense(10, in_units=32))
    net.initialize()
    drawn = np.random.RandomState(seed)
    for _, parameter in sorted(net.collect_params().items()):
        parameter.set_data(mx.nd.array(drawn.normal(0, 0.05, parameter.shape)))
    return net


def trainer_for(way, net):
    parameters, options = net.collect_params(), {"learning_rate": 0.5, "momentum": 0.5}
    if way == "optimizer":
        # As in Horovod itself, the batch size passed to `step` does not reach the inner optimizer.
        inside = mx.optimizer.create("sgd", rescale_grad=hvd.size() / BATCH, **options)
        return gluon.Trainer(parameters, hvd.DistributedOptimizer(inside), kvstore=None)
    more = {
        "trainer": {},
        "groups": {"num_groups": 2},
        "predivided": {"gradient_predivide_factor": 2.0},
        "fp16": {"compression": hvd.Compression.fp16},
    }[way]
    return hvd.DistributedTrainer(parameters, "sgd", options, prefix=way, **more)


def train(way, images, labels):
    """Train; return the losses of each step over the whole batch, and the final weights."""
    net = make_net(seed=hvd.rank())  # ranks differ until rank 0's weights are broadcast
    hvd.broadcast_parameters(net.collect_params(), root_rank=0, prefix=way)
    trainer = trainer_for(way, net)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    share = BATCH // hvd.size()
    losses = []
    for step in range(STEPS):
        begin = step * BATCH + hvd.rank() * share
        with autograd.record():
            loss = loss_of(net(mx.nd.array(images[begin : begin + share])), mx.nd.array(labels[begin : begin + share]))
        loss.backward()
        trainer.step(share)
        losses.append(float(hvd.allreduce(loss.mean(), name=f"loss.{way}").asscalar()))
    weights = [value.data().asnumpy().tolist() for _, value in sorted(net.collect_params().items())]
    return {"losses": losses, "weights": weights}


def main():
    folder, out = sys.argv[1:3]
    hvd.init(process_sets="dynamic")
    if "--dies" in sys.argv:
        for step in range(100_000):
            if step == 5 and hvd.rank() == hvd.size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            hvd.allreduce(mx.nd.ones(1000), name="step")
    check_operations()
    with gzip.open(os.path.join(folder, "mnist_5k.csv.gz"), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    table = table[np.random.RandomState(7).permutation(len(table))]
    ways = ("trainer", "optimizer", "groups", "predivided", "fp16")
    found = {way: train(way, table[:, :-1] / 255, table[:, -1]) for way in ways}
    with open(os.path.join(out, f"rank-{hvd.rank()}.json"), "w") as file:
        json.dump({"size": hvd.size(), **found}, file)
    hvd.shutdown()


if __name__ == "__main__":
    main()
