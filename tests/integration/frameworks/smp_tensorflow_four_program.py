"""Test functions of four ranks with `smdistributed.modelparallel.tensorflow`; run by test_smp_tensorflow."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf
from smp_tensorflow_models import BATCH, convolutions, digits, perceptron, start, train_alone, trainer

IMAGES, LABELS = digits()


def batches(count, first=0):
    """Return this replica's part of some batches, and the whole batches."""
    found = []
    for number in range(first, first + count):
        images, labels = (tf.constant(one[number * BATCH : (number + 1) * BATCH]) for one in (IMAGES, LABELS))
        own = slice(smp.dp_rank() * BATCH // smp.dp_size(), (smp.dp_rank() + 1) * BATCH // smp.dp_size())
        found.append(((images[own], labels[own]), (images, labels)))
    return found


def mean_of_replicas(loss):
    return float(np.mean(smp.allgather(float(loss), smp.DP_GROUP)))


def test_two_replicas_of_two_partitions_have_the_losses_of_one_process(rank, size):
    for placement in ("cluster", "spread"):
        start(partitions=2, microbatches=2, ddp=True, placement_strategy=placement)
        alone, _ = train_alone(convolutions, [whole for _, whole in batches(4)], 4)
        _, train, _, _ = trainer(convolutions)
        losses = [mean_of_replicas(train(*own)) for own, _ in batches(4)]
        np.testing.assert_allclose(losses, alone, rtol=2e-5)
        assert smp.get_mp_group() == (
            [[0, 1], [2, 3]][rank // 2] if placement == "cluster" else [[0, 2], [1, 3]][rank % 2]
        )


def test_four_partitions_by_hand_have_the_losses_of_one_process(rank, size):
    for pipeline in ("simple", "interleaved"):
        start(partitions=4, microbatches=4, auto_partition=False, default_partition=0, pipeline=pipeline)
        alone, _ = train_alone(perceptron, [whole for _, whole in batches(3)], 4)
        _, train, _, _ = trainer(lambda base: perceptron(base, by_hand=(0, 1, 2, 3)))
        np.testing.assert_allclose([float(train(*own)) for own, _ in batches(3)], alone, rtol=2e-5)


def test_a_replica_without_access_to_the_files_receives_them(rank, size):
    start(partitions=2, microbatches=2, ddp=True)
    own_folder = Path(tempfile.mkdtemp())  # as on a separate host
    _, train, _, checkpoint = trainer(convolutions)
    manager = smp.CheckpointManager(checkpoint, str(own_folder))
    for own, _ in batches(2):
        train(*own)
    manager.save()
    later = [mean_of_replicas(train(*own)) for own, _ in batches(2, 2)]
    assert (own_folder / f"mp_rank_{smp.mp_rank()}/checkpoint").exists() == (smp.dp_rank() == 0)
    start(partitions=2, microbatches=2, ddp=True)
    _, train, _, checkpoint = trainer(convolutions)
    smp.CheckpointManager(checkpoint, str(own_folder)).restore()
    assert [mean_of_replicas(train(*own)) for own, _ in batches(2, 2)] == later
    shutil.rmtree(own_folder)
