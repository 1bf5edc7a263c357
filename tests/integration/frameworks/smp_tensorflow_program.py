"""Test functions of two ranks with `smdistributed.modelparallel.tensorflow`; run by test_smp_tensorflow."""

import contextlib
import logging
import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf
from smdistributed.modelparallel.tensorflow.exceptions import CheckpointError, ParallelError, RankLost
from smdistributed.modelparallel.tensorflow.utils import (
    GraphBuildError,
    receive_checkpoint_files,
    send_checkpoint_files,
)
from smp_tensorflow_models import BATCH, LOSS, convolutions, digits, perceptron, recurrent, start, train_alone, trainer

from clary.train.parallel.layout.mesh import Along
from clary.train.tf_parallel import session
from clary.train.tf_parallel.costs import layer_costs
from clary.train.tf_parallel.tracing import LayerCall

IMAGES, LABELS = digits()
NUM_BATCHES = 4


def batches(count=NUM_BATCHES, first=0):
    parts = [slice(number * BATCH, (number + 1) * BATCH) for number in range(first, first + count)]
    return [(tf.constant(IMAGES[part]), tf.constant(LABELS[part])) for part in parts]


def failure_of(kind, call, *words):
    """Check that a call raises this kind of error with these words; return its message."""
    try:
        call()
    except kind as error:
        found = str(error)
    else:
        raise AssertionError(f"no {kind} came")
    missing = [word for word in words if word not in found]
    assert not missing, f"{missing} not in {found}"
    return found


def assert_like_alone(make, num_microbatches, *, by_tape=False, tolerance=2e-5, **config):
    alone, whole = train_alone(make, batches(), num_microbatches)
    start(microbatches=num_microbatches, **config)
    _, train, scores, _ = trainer(make, by_tape=by_tape)
    losses = [float(train(*batch)) for batch in batches()]
    np.testing.assert_allclose(losses, alone, rtol=tolerance)
    images = batches()[0][0]
    np.testing.assert_allclose(scores(images).numpy(), whole(images, training=False).numpy(), rtol=2e-3, atol=2e-3)
    assert smp.allgather(losses) == [losses] * smp.size(), "ranks know other losses"


def test_two_partitions_have_the_losses_of_one_process(rank, size):
    for pipeline in ("simple", "interleaved"):
        for num_microbatches in (1, 2, 4):
            assert_like_alone(convolutions, num_microbatches, partitions=2, pipeline=pipeline)


def test_each_variable_uses_memory_on_one_rank_only(rank, size):
    start(partitions=2, microbatches=2)
    model, train, _, _ = trainer(convolutions)
    train(*batches(1)[0])
    parts = smp.allgather(len(model.variables))
    assert all(parts)
    assert sum(parts) == len(model.all_variables), parts
    held = {id(one) for one in model.variables}
    for one in model.all_variables:
        value = one if isinstance(one, tf.Variable) else one.value
        assert value.read_value().shape.num_elements() == (np.prod(value.shape) if id(one) in held else 0), (
            "another rank's variable has memory here"
        )


def test_a_tape_computes_the_same_gradients_as_get_gradients(rank, size):
    assert_like_alone(convolutions, 2, partitions=2, by_tape=True)


def test_a_global_norm_covers_the_gradients_of_all_partitions(rank, size):
    alone, _ = train_alone(convolutions, batches(), 2, clip_norm=0.05)
    unclipped, _ = train_alone(convolutions, batches(), 2)
    assert alone[-1] != unclipped[-1]
    start(partitions=2, microbatches=2)
    model, train, _, _ = trainer(convolutions, clip_norm=0.05)
    np.testing.assert_allclose([float(train(*batch)) for batch in batches()], alone, rtol=2e-5)
    own = [tf.ones(one.shape) for one in model.trainable_variables]
    elements = sum(int(np.prod(one.shape)) for one in model.all_trainable_variables)
    np.testing.assert_allclose(float(tf.linalg.global_norm(own)), elements**0.5, rtol=1e-6)
    assert float(tf.linalg.global_norm([tf.constant([3.0, 4.0])])) == 5.0

    @smp.step
    def clips_inside(images, labels):
        gradients = tf.keras.optimizers.SGD.get_gradients(None, LOSS(labels, model(images)), model.trainable_variables)
        return tf.clip_by_global_norm(gradients, 1.0)[0]

    failure_of(GraphBuildError, lambda: clips_inside(*batches(1)[0]), "outside of smp.step")


class TwoLayers(smp.DistributedModel):
    """A model with a layer on each partition.

    Args:
        second: the layer on partition 1; the layer on partition 0 is dense.
    """

    def __init__(self, second):
        super().__init__()
        self.first, self.second = tf.keras.layers.Dense(3), second

    def call(self, x):
        with smp.partition(0):
            x = self.first(x)
        with smp.partition(1):
            return self.second(x)


def step_of(model):
    """Return a step that gives the gradients of this rank's variables."""

    @smp.step
    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(images))
        return tape.gradient(loss, model.trainable_variables)

    return step


def test_a_global_norm_covers_a_partition_without_trained_variables(rank, size):
    start(partitions=2, microbatches=1, auto_partition=False, default_partition=0)
    model = TwoLayers(tf.keras.layers.ReLU())
    gradients = [one.accumulate() for one in step_of(model)(tf.ones([4, 2]))]
    assert len(gradients) == (0 if rank else 2)
    own = [tf.fill(one.shape, 2.0) for one in gradients]
    clipped, norm = tf.clip_by_global_norm(own, 3.0)
    assert float(norm) == 6.0  # of 9 elements
    assert [float(tf.reduce_max(one)) for one in clipped] == [1.0] * len(own)
    assert float(tf.function(lambda: tf.linalg.global_norm(own))()) == 6.0


def test_a_global_norm_covers_gradients_some_of_which_are_none(rank, size):
    start(partitions=2, microbatches=1, auto_partition=False, default_partition=0)
    model = TwoLayers(tf.keras.layers.Dense(5))
    step_of(model)(tf.ones([4, 2]))
    kernel, bias = model.trainable_variables  # 6 and 3 elements, or 15 and 5
    assert float(tf.linalg.global_norm([tf.ones(kernel.shape), None])) == np.float32(21**0.5)
    clipped, norm = tf.clip_by_global_norm([None, tf.ones(bias.shape)] if rank else [None, None], 1.0)
    assert float(norm) == np.float32(5**0.5)
    assert [one is None for one in clipped] == ([True, False] if rank else [True, True])
    assert float(tf.linalg.global_norm([None, tf.constant([3.0, 4.0])])) == 5.0


def test_partitions_with_shared_layers_and_matrices_have_the_losses_of_one_process(rank, size):
    assert_like_alone(perceptron, 2, partitions=2)


def test_parts_placed_by_hand_in_any_order(rank, size):
    for places in ((0, 1, 1, 1), (0, 1, 0, 1), (1, 0, 1, 0)):
        assert_like_alone(
            lambda base, places=places: perceptron(base, by_hand=places),
            2,
            partitions=2,
            auto_partition=False,
            default_partition=0,
        )


def test_models_with_loops_embeddings_and_dropout_have_the_losses_of_one_process(rank, size):
    assert_like_alone(recurrent, 1, partitions=2)
    assert_like_alone(recurrent, 2, partitions=2)


def test_one_partition_is_the_whole_model(rank, size):
    alone, _ = train_alone(convolutions, batches(), 2)
    start(partitions=1, microbatches=2)
    _, train, _, _ = trainer(convolutions)
    np.testing.assert_allclose([float(train(*batch)) for batch in batches()], alone, rtol=2e-5)
    assert (smp.dp_size(), smp.pp_size()) == (size, 1)


def test_replicas_under_ddp_start_with_equal_weights_and_average_gradients(rank, size):
    alone, _ = train_alone(convolutions, batches(), 4)
    start(partitions=1, microbatches=2, ddp=True)
    tf.keras.utils.set_random_seed(rank)  # initial values of replicas differ without a broadcast
    model, train, _, _ = trainer(convolutions)
    losses = []
    for images, labels in batches():
        own = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
        losses.append(np.mean(smp.allgather(float(train(images[own], labels[own])), smp.DP_GROUP)))
    np.testing.assert_allclose(losses, alone, rtol=2e-5)
    mine = [np.asarray(one) for one in model.trainable_variables]
    for one, other in zip(*smp.allgather(mine), strict=True):
        np.testing.assert_array_equal(one, other)


def test_replicas_average_each_requested_gradient(rank, size):
    start(partitions=1, microbatches=2, ddp=True)
    model, optimizer = perceptron(smp.DistributedModel)(), tf.keras.optimizers.Adam()

    @smp.step
    def gradients_of(images, labels):
        loss = LOSS(labels, model(images))
        return optimizer.get_gradients(loss, model.trainable_variables), loss

    images, labels = batches(2)[rank]
    gradients, _ = gradients_of(images, labels)
    first = gradients[0]
    outputs = [one.numpy() for one in first.outputs]
    np.testing.assert_allclose(np.mean(outputs, axis=0), first.reduce_mean().numpy(), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(np.sum(outputs, axis=0), first.reduce_sum().numpy(), rtol=1e-5, atol=1e-8)
    told = smp.allgather(first.accumulate().numpy())
    np.testing.assert_array_equal(told[0], told[1])


def test_eager_calls_results_of_all_kinds_and_arguments_of_all_kinds(rank, size):
    start(partitions=2, microbatches=2)
    model = perceptron(smp.DistributedModel)()

    @smp.step(["weight"], {"columns": 1})
    def step(batch, weight, columns, factor, *, name):
        scores = model(batch["images"]) * factor * weight[0]
        return {"scores": scores, "name": name, "parts": (columns, [tf.shape(batch["images"])[0], 7, None])}

    images = IMAGES[:8]
    found = step({"images": images}, tf.constant([2.0, 3.0]), np.arange(8.0).reshape(2, 4), 0.5, name="evaluation")
    assert found["name"] == ["evaluation"] * 2
    assert found["parts"][1][1:] == [[7, 7], [None, None]]
    assert [int(one) for one in found["parts"][1][0].outputs] == [4, 4]
    assert [one.shape for one in found["parts"][0].outputs] == [(2, 2), (2, 2)]
    assert found["scores"].merge().shape == (8, 10)
    assert found["scores"].concat().shape == (8, 10)
    assert found["scores"].stack().shape == (2, 4, 10)
    np.testing.assert_array_equal(found["parts"][0].reduce_sum().numpy(), [[0.0 + 2, 1 + 3], [4 + 6, 5 + 7]])
    for method in ("variable", "add_n", "accumulate_n"):
        kept = tf.Variable(tf.zeros([4, 10]))
        mean = found["scores"].accumulate(method=method, var=kept)
        np.testing.assert_allclose(mean.numpy(), found["scores"].reduce_mean().numpy())
        assert bool(tf.reduce_any(kept != 0)) == (method == "variable")
    failure_of(ValueError, lambda: found["scores"].accumulate(method="sum"), "'sum'", "add_n")
    failure_of(TypeError, found["parts"][1][0].reduce_mean, "int32")


def test_signatures_give_arrays_their_types_and_metrics_count_microbatches(rank, size):
    start(partitions=2, microbatches=2)
    model = perceptron(smp.DistributedModel)()
    mean = tf.keras.metrics.Mean()

    class Evaluation:
        @smp.step(
            non_split_inputs=["self"],
            input_signature=[
                tf.TensorSpec([None, 28, 28, 1], tf.float32),
                tf.TensorSpec([None], tf.int64),
            ],
        )
        def run(self, images, labels):
            loss = LOSS(labels, model(images, training=False))
            mean(loss)
            return loss

        @smp.step
        def run_without_self(images, labels):
            return LOSS(labels, model(images, training=False))

    evaluation = Evaluation()
    found = [evaluation.run(IMAGES[:8].astype(np.float64), LABELS[:8]) for _ in range(2)]
    assert float(mean.count) == 4
    np.testing.assert_allclose(float(mean.result()), float(found[1].reduce_mean()), rtol=1e-6)
    score = tf.function(lambda *batch: evaluation.run_without_self(*batch).reduce_mean())
    np.testing.assert_allclose(float(score(IMAGES[:8], LABELS[:8])), float(found[1].reduce_mean()), rtol=1e-6)
    failure_of(
        TypeError,
        lambda: evaluation.run(tf.constant(IMAGES[:8], tf.float64), LABELS[:8]),
        "float64",
        "input_signature",
    )


def test_post_partition_hooks_run_once_before_the_first_step(rank, size):
    start(partitions=2, microbatches=1)
    model, train, _, _ = trainer(perceptron)
    seen = []

    @smp.register_post_partition_hook
    def hook(word):
        assert tf.executing_eagerly()
        seen.append((word, model.partitioned, len(model.variables) < len(model.all_variables)))

    hook("early")
    assert not seen
    train(*batches(1)[0])
    assert seen == [("early", True, True)]
    train(*batches(1)[0])
    hook("late")
    assert [word for word, _, _ in seen] == ["early", "late"]


def test_training_resumed_from_a_checkpoint_continues_bit_by_bit(rank, size):
    folder = smp_folder(rank)
    start(partitions=2, microbatches=2)
    _, train, _, checkpoint = trainer(convolutions)
    manager = smp.CheckpointManager(checkpoint, folder, max_to_keep=2)
    failure_of(CheckpointError, manager.save, "not cut yet")
    manager.restore()  # without a checkpoint this does nothing
    first = [float(train(*batch)) for batch in batches(3)]
    path = manager.save()
    assert path == f"{folder}/mp_rank_{rank}/ckpt-1"
    later = [float(train(*batch)) for batch in batches(3, 3)]
    manager.save()
    smp.barrier()
    assert sorted(os.listdir(folder)) == ["mp_rank_0", "mp_rank_1"]
    manager.restore("ckpt-1")
    assert [float(train(*batch)) for batch in batches(3, 3)] == later
    start(partitions=2, microbatches=2)
    _, train, _, checkpoint = trainer(convolutions)
    manager = smp.CheckpointManager(checkpoint, folder)
    manager.restore(restore_prefix="ckpt-1").expect_partial()
    assert [float(train(*batch)) for batch in batches(3, 3)] == later
    assert float(train(*batches(1)[0])) != first[0]
    start(partitions=2, microbatches=2)
    _, train, _, checkpoint = trainer(convolutions)
    manager = smp.CheckpointManager(checkpoint, folder)
    assert float(train(*batches(1)[0])) == first[0]
    manager.restore(restore_prefix="ckpt-9")  # a missing checkpoint changes nothing
    assert float(train(*batches(1, 1)[0])) == first[1]
    manager.restore(restore_prefix="ckpt-1")
    assert [float(train(*batch)) for batch in batches(3, 3)] == later
    start(partitions=1, microbatches=2)
    _, train, _, checkpoint = trainer(convolutions)
    train(*batches(1)[0])
    manager = smp.CheckpointManager(checkpoint, f"{folder}")
    failure_of(CheckpointError, manager.restore, "partitions were 2", "are 1")


def test_a_failed_save_of_one_part_removes_no_checkpoint_of_the_others(rank, size):
    folder = smp_folder(rank)
    start(partitions=2, microbatches=2)
    _, train, _, checkpoint = trainer(perceptron)
    manager = smp.CheckpointManager(checkpoint, folder, max_to_keep=1)
    train(*batches(1)[0])
    manager.save()
    later = [float(train(*batch)) for batch in batches(2, 1)]
    full = mock.patch.object(tf.train.Checkpoint, "_write", side_effect=OSError("no space is left"))
    with full if rank else contextlib.nullcontext():
        failure_of(CheckpointError, manager.save, "rank 1", "no space is left")
    assert Path(folder, f"mp_rank_{rank}", "ckpt-1.index").exists()
    manager.restore()  # of ckpt-1, the only one of both parts
    assert [float(train(*batch)) for batch in batches(2, 1)] == later
    name = Path(manager.save()).name
    smp.barrier()
    for part in ("mp_rank_0", "mp_rank_1"):
        assert [one.stem for one in Path(folder, part).glob("*.index")] == [name]
    manager.restore(name)
    smp.barrier()


def smp_folder(rank):
    """Return a new folder with the same path on both ranks."""
    start(partitions=1)
    if rank:
        return smp.recv_from(0)
    folder = tempfile.mkdtemp()
    smp.broadcast(folder)
    return folder


def test_files_of_checkpoints_are_sent_from_rank_to_rank(rank, size):
    start(partitions=2)
    own = Path(tempfile.mkdtemp())
    if rank == 0:
        (own / "one").write_bytes(b"1" * 100_000)
        (own / "two").write_bytes(b"")
        (own / "mp_rank_0").mkdir()
        (own / "mp_rank_0/three").write_bytes(b"3")
        send_checkpoint_files(str(own), 1)
        session.current().links.send({"../astray": b""}, 1, Along.WORLD)
    else:
        receive_checkpoint_files(str(own / "new"), 0)
        assert (own / "new/one").read_bytes() == b"1" * 100_000
        assert (own / "new/two").read_bytes() == b""
        assert (own / "new/mp_rank_0/three").read_bytes() == b"3"
        failure_of(
            CheckpointError, lambda: receive_checkpoint_files(str(own / "new"), 0), "'../astray'", "does not lie in"
        )
        assert not (own / "astray").exists()


def test_the_whole_model_is_saved_with_its_trained_weights(rank, size):
    folder = smp_folder(rank)
    start(partitions=2, microbatches=2)
    model, train, scores, _ = trainer(convolutions)
    for batch in batches():
        train(*batch)
    model.save_model(f"{folder}/saved")
    images = batches()[0][0]
    expected = scores(images)
    if rank == 0:
        loaded = tf.saved_model.load(f"{folder}/saved").signatures["serving_default"](images)
        np.testing.assert_allclose(loaded["output_0"].numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)
    before = float(train(*batches(1)[0]))
    assert np.isfinite(before)


class Masked(smp.DistributedModel):
    """A model whose argument `training` is followed by another positional argument."""

    def __init__(self):
        super().__init__()
        self.first, self.second = tf.keras.layers.Dense(3), tf.keras.layers.Dense(2)

    def call(self, x, training=None, scale=1.0):
        x = self.first(x) * scale
        return self.second(x * 100.0 if training else x)


def test_arguments_after_training_are_saved(rank, size):
    folder = smp_folder(rank)
    start(partitions=2, microbatches=1)
    model = Masked()

    @smp.step
    def step(x, scale):
        return model(x, None, scale)  # Keras 3 takes no other positional value of `training`

    x, scale = tf.ones([4, 2]), tf.fill([4, 3], 7.0)
    expected = step(x, scale).merge()
    model.save_model(f"{folder}/saved")
    if rank == 0:
        loaded = tf.saved_model.load(f"{folder}/saved")
        found = loaded.serve(x, scale)
        np.testing.assert_allclose(found["output_0"].numpy(), expected.numpy(), rtol=1e-5)


def test_all_ranks_raise_if_the_model_cannot_be_written(rank, size):
    folder = smp_folder(rank)
    start(partitions=2, microbatches=2)
    model, train, _, _ = trainer(convolutions)
    train(*batches(1)[0])
    if rank == 0:
        Path(folder, "file").touch()
    failure_of(ParallelError, lambda: model.save_model(f"{folder}/file/saved"), "rank 0 could not write", "file/saved")
    assert smp.allgather(rank) == [0, 1], "ranks must go on together"
    assert np.isfinite(float(train(*batches(1)[0])))


def test_ranks_groups_and_objects(rank, size):
    start(partitions=2)
    assert (smp.rank(), smp.size(), smp.local_rank(), smp.local_size()) == (rank, 2, rank, 2)
    assert (smp.mp_rank(), smp.mp_size(), smp.pp_rank(), smp.pp_size()) == (rank, 2, rank, 2)
    assert (smp.dp_rank(), smp.dp_size(), smp.tp_rank(), smp.tp_size()) == (0, 1, 0, 1)
    assert (smp.get_mp_group(), smp.get_dp_group()) == ([0, 1], [rank])
    assert smp.state.cfg.partitions == 2
    if rank == 0:
        smp.send({"large": np.arange(300_000)}, 1, smp.RankType.PP_RANK)
        assert smp.recv_from(1, smp.RankType.MP_RANK) == "back"
        smp.broadcast("to all", smp.WORLD)
    else:
        assert smp.recv_from(0)["large"][-1] == 299_999
        smp.send("back", 0)
        assert smp.recv_from(0) == "to all"
    assert smp.allgather(rank * 2, smp.CommGroup.MP_GROUP) == [0, 2]
    assert smp.allgather(rank, smp.DP_GROUP) == [rank]
    smp.barrier()
    smp.core.barrier()
    smp.dp_barrier()
    smp.mp_barrier()
    failure_of(ValueError, lambda: smp.send(1, rank), "itself")
    smp.init({"partitions": 2})
    failure_of(RuntimeError, lambda: smp.init({"partitions": 1}), "other keys")


def test_configuration_keys_only_for_torch_are_refused(rank, size):
    smp.shutdown()
    for key, value in {"fp16": True, "offload_activations": True, "delayed_parameter_initialization": True}.items():
        failure_of(ValueError, lambda key=key, value=value: smp.init({key: value}), key, "PyTorch")
    failure_of(ValueError, lambda: smp.init({"tensor_parallel_degree": 2, "ddp": True}), "tensor_parallel_degree")
    failure_of(ValueError, lambda: smp.init({"partitions": 3}), "2 ranks")


def test_keys_without_effect_are_named_in_a_warning(rank, size):
    class Kept(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())

    told, handler = [], Kept()
    logging.getLogger("clary.smp").addHandler(handler)
    try:
        start(partitions=1)
        assert not told
        start(partitions=1, contiguous=False)
    finally:
        logging.getLogger("clary.smp").removeHandler(handler)
    assert told == ["keys without effect here: contiguous"]


def test_a_missing_horovod_leaves_smp_uninitialised(rank, size):
    smp.shutdown()
    name = "horovod.tensorflow"
    kept = sys.modules.pop(name, None)
    sys.modules[name] = None  # an import raises ImportError
    try:
        for _ in range(2):
            failure_of(ValueError, lambda: smp.init({"partitions": 1, "horovod": True}), "horovod.tensorflow")
            assert not smp.is_initialized()
    finally:
        del sys.modules[name]
        if kept is not None:
            sys.modules[name] = kept
    smp.init({"partitions": 2})
    assert smp.allgather(rank) == [0, 1]


def test_the_work_of_convolutions_counts_each_multiplication_once(rank, size):
    images, work = tf.TensorSpec([1, 10, 10, 4]), {}
    for name, act in {
        "plain": lambda x: tf.nn.conv2d(x, tf.zeros([3, 3, 4, 6]), 1, "VALID"),
        "grouped": lambda x: tf.nn.conv2d(x, tf.zeros([3, 3, 2, 6]), 1, "VALID"),
        "depthwise": lambda x: tf.nn.depthwise_conv2d(x, tf.zeros([3, 3, 4, 2]), [1, 1, 1, 1], "VALID"),
    }.items():
        graph = tf.function(act).get_concrete_function(images).graph
        operations = [one.name for one in graph.get_operations() if one.type in ("Conv2D", "DepthwiseConv2dNative")]
        (cost,) = layer_costs([LayerCall(tf.keras.layers.Layer(), name, None, operations)], graph)
        work[name] = cost.seconds
    assert work == {
        "plain": 2 * 8 * 8 * 6 * 3 * 3 * 4,
        "grouped": 2 * 8 * 8 * 6 * 3 * 3 * 2,
        "depthwise": 2 * 8 * 8 * 8 * 3 * 3,
    }


class Stranger(smp.DistributedModel):
    """A model that uses a variable of another object."""

    def __init__(self, stranger):
        super().__init__()
        self.dense = tf.keras.layers.Dense(2)
        self.strangers = lambda: stranger

    def call(self, x):
        return self.dense(x * self.strangers())


def test_a_model_that_uses_foreign_variables_is_refused(rank, size):
    start(partitions=1, microbatches=2)
    model = Stranger(tf.Variable(1.0, name="test_var"))

    @smp.step
    def step(x):
        return model(x)

    failure_of(GraphBuildError, lambda: step(tf.ones([2, 2])), "test_var")
    failure_of(GraphBuildError, lambda: tf.function(lambda x: step(x).merge())(tf.ones([2, 2])), "test_var")


def test_calls_with_wrong_results_are_refused(rank, size):
    start(partitions=2, microbatches=2)
    model, train, _, _ = trainer(perceptron)
    images, labels = batches(1)[0]
    train(images, labels)
    failure_of(ValueError, lambda: train(images[:3], labels[:3]), "multiple of 2 microbatches")
    failure_of(GraphBuildError, lambda: model(images), "outside of an smp.step")
    failure_of(GraphBuildError, lambda: model.fit(images, labels), "smp.step")
    failure_of(GraphBuildError, lambda: model.save_weights("x.weights.h5"), "smp.CheckpointManager")
    optimizer = tf.keras.optimizers.SGD(0.1)

    @smp.step
    def trains_inside(images, labels):
        loss = LOSS(labels, model(images))
        gradients = optimizer.get_gradients(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    failure_of(GraphBuildError, lambda: trains_inside(images, labels), "apply_gradients")

    @smp.step
    def has_own_penalty(images, labels):
        penalty = tf.add_n([tf.nn.l2_loss(tf.convert_to_tensor(one)) for one in model.trainable_variables])
        loss = LOSS(labels, model(images)) + penalty
        return optimizer.get_gradients(loss, model.trainable_variables), loss

    failure_of(GraphBuildError, lambda: has_own_penalty(images, labels), "a different step", "kernel_regularizer")
    clipped = tf.keras.optimizers.SGD(0.1, global_clipnorm=1.0)

    @smp.step
    def clips_all(images, labels):
        return clipped.get_gradients(LOSS(labels, model(images)), model.trainable_variables)

    failure_of(GraphBuildError, lambda: clips_all(images, labels), "global_clipnorm")
    failure_of(GraphBuildError, lambda: clipped.apply_gradients([]), "global_clipnorm")

    @smp.step
    def calls_nothing(images):
        return images

    failure_of(GraphBuildError, lambda: calls_nothing(images), "calls no smp.DistributedModel")
    failure_of(ValueError, lambda: smp.step(lambda x: x, jit_compile=True), "jit_compile")
    failure_of(GraphBuildError, lambda: optimizer.get_gradients(images, []), "inside of an smp.step")
    assert np.isfinite(float(train(images, labels))), "a refusal must leave the model as it was"


def test_a_manual_partition_that_leaves_a_rank_empty_is_refused(rank, size):
    start(partitions=2, auto_partition=False, default_partition=0)

    def outside():
        with smp.partition(1):
            tf.constant(1)

    failure_of(GraphBuildError, outside, "in call")
    model = perceptron(smp.DistributedModel, by_hand=(0, 0, 0, 0))()

    @smp.step
    def step(images):
        return model(images)

    failure_of(GraphBuildError, lambda: step(batches(1)[0][0]), "partitions 1 of 2 would hold no part")
    beyond = perceptron(smp.DistributedModel, by_hand=(0, 1, 2, 0))()

    @smp.step
    def step_beyond(images):
        return beyond(images)

    failure_of(ValueError, lambda: step_beyond(batches(1)[0][0]), "smp.partition(2)", "2 partitions")


def test_gradients_changed_inside_of_a_step_are_refused_under_ddp(rank, size):
    start(partitions=1, ddp=True)
    model = perceptron(smp.DistributedModel)()
    optimizer = tf.keras.optimizers.SGD(0.1)

    @smp.step
    def step(images, labels):
        loss = LOSS(labels, model(images))
        return [tf.clip_by_norm(one, 1.0) for one in optimizer.get_gradients(loss, model.trainable_variables)]

    failure_of(GraphBuildError, lambda: step(*batches(1)[0]), "outside of smp.step")


def test_horovod_started_by_smp_averages_over_replicas(rank, size):
    alone, _ = train_alone(convolutions, batches(2), 4)
    start(partitions=1, microbatches=2, horovod=True)
    import horovod.tensorflow as hvd

    assert (hvd.rank(), hvd.size()) == (smp.dp_rank(), smp.dp_size())
    model, optimizer = convolutions(smp.DistributedModel)(), tf.keras.optimizers.Adam(0.01)

    @smp.step
    def forward_backward(images, labels):
        loss = LOSS(labels, model(images, training=True))
        return optimizer.get_gradients(loss, model.trainable_variables), loss

    @tf.function
    def train(images, labels):
        gradients, loss = forward_backward(images, labels)
        gradients = [hvd.allreduce(one.accumulate()) for one in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss.reduce_mean()

    losses = []
    for images, labels in batches(2):
        own = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
        losses.append(np.mean(smp.allgather(float(train(images[own], labels[own])))))
    np.testing.assert_allclose(losses, alone, rtol=2e-5)
    hvd.shutdown()


def test_an_error_of_one_rank_fails_the_other_with_its_message(rank, size):
    start(partitions=2, microbatches=2)
    model = perceptron(smp.DistributedModel)()

    @smp.step
    def step(images, limit):
        tf.debugging.assert_less(tf.reduce_max(images), limit, message="too bright on one rank")
        return model(images)

    images = batches(1)[0][0]
    failure = failure_of(ParallelError, lambda: step(images, tf.constant(0.0 if rank else 2.0)), f"rank {rank}")
    assert "too bright" in failure, failure
    assert rank or issubclass(RankLost, ParallelError)


def test_ranks_whose_models_differ_are_refused(rank, size):
    start(partitions=2)

    class Different(smp.DistributedModel):
        def __init__(self):
            super().__init__()
            self.first = tf.keras.layers.Dense(4 + rank)
            self.second = tf.keras.layers.Dense(2)

        def call(self, x):
            return self.second(self.first(x))

    model = Different()

    @smp.step
    def step(x):
        return model(x)

    failure_of(GraphBuildError, lambda: step(tf.ones([4, 3])), f"from rank {rank}", "the same model")
