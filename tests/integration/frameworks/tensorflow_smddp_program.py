"""Checks of `smdistributed.dataparallel.tensorflow` on several ranks."""

import importlib
from functools import partial

import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf

from clary.train.collective.adapters.tensorflow.memory import tensor_of

sdp.init()


def raises(error, act, *words):
    """Assert that a call raises an error with these words."""
    raised = None
    try:
        act()
    except error as caught:
        raised = caught
    assert raised is not None, f"nothing raised {error}"
    assert all(word in str(raised) for word in words), raised


def mean_of(size, own):
    """Return the mean of `own(rank)` over all ranks."""
    return np.mean([own(rank) for rank in range(size)], axis=0)


def check_ranks_are_those_of_the_launcher(rank, size):
    assert (sdp.rank(), sdp.size(), sdp.local_rank(), sdp.local_size()) == (rank, size, rank, size)
    assert sdp.is_initialized()


def check_a_second_init_is_refused(rank, size):
    raises(Exception, sdp.init, "already initialized")


def check_reductions_of_each_type_eagerly_and_in_a_function(rank, size):
    for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32, tf.int64):
        tensor = tf.cast(tf.reshape(tf.range(6), [2, 3]) + rank, dtype)
        for run in (lambda act: act(), lambda act: tf.function(act)()):
            summed = run(partial(sdp.allreduce, tensor, 0, 1, op=sdp.ReduceOp.SUM))
            assert (summed.dtype, summed.shape) == (dtype, tensor.shape)
            expected = sum(np.arange(6).reshape(2, 3) + other for other in range(size))
            assert np.array_equal(tf.cast(summed, tf.float32), expected)
            largest = run(partial(sdp.allreduce, tensor, 0, 1, op=sdp.ReduceOp.MAX))
            assert np.array_equal(tf.cast(largest, tf.float32), np.arange(6).reshape(2, 3) + size - 1)
            if dtype.is_floating:
                averaged = run(partial(sdp.allreduce, tensor, 0, 1))
                assert np.allclose(tf.cast(averaged, tf.float32), expected / size, rtol=1e-2)


def check_an_average_of_whole_numbers_is_refused(rank, size):
    raises(TypeError, lambda: sdp.oob_allreduce(tf.constant(1)), "cast it to a floating type")


def check_an_array_of_any_alignment_becomes_a_tensor(rank, size):
    whole = np.zeros(100, np.float32)
    for first in range(16):
        part = whole[first : first + 20]
        part[:] = first
        assert float(tensor_of(part)[3]) == first


def check_scalars_empty_and_large_tensors(rank, size):
    assert float(sdp.oob_allreduce(tf.constant(float(rank)))) == (size - 1) / 2
    # `grad` is the argument's name in a script of AWS's containers.
    assert float(sdp.allreduce(grad=tf.constant(float(rank)), param_index=0, num_params=1)) == (size - 1) / 2
    assert sdp.oob_allreduce(tf.zeros([0, 3])).shape == [0, 3]
    large = tf.fill([300_000], float(rank + 1))
    for _ in range(3):
        kept = sdp.allreduce(large, 0, 1, op=sdp.ReduceOp.SUM)
        later = sdp.allreduce(large * 2, 0, 1, op=sdp.ReduceOp.SUM)
        assert float(kept[-1]) == size * (size + 1) / 2, "a result that is kept is not written again"
        assert float(later[0]) == size * (size + 1)
    assert float(large[0]) == rank + 1, "what was passed is not changed"


def check_broadcasts_of_tensors_and_variables(rank, size):
    for dtype in (tf.float32, tf.bool, tf.uint16, tf.complex64):
        root = size - 1
        sent = sdp.broadcast(tf.cast([rank, 1, 0], dtype), root_rank=root)
        assert np.array_equal(sent.numpy(), tf.cast([root, 1, 0], dtype).numpy())
    variables = [tf.Variable([float(rank)] * 3), tf.Variable(rank)]
    sdp.broadcast_variables(variables, root_rank=1)
    assert [variables[0].numpy().tolist(), int(variables[1])] == [[1.0] * 3, 1]
    tf.function(lambda: sdp.broadcast_variables([variables[0].assign([float(rank)] * 3)], root_rank=0))()
    raises(ValueError, lambda: sdp.broadcast(tf.zeros(1), root_rank=size), "is no rank")
    raises(RuntimeError, lambda: sdp.broadcast_global_variables(0), "broadcast_variables")


def check_a_tape_averages_dense_and_sparse_gradients_and_leaves_none(rank, size):
    table, unused, scale = tf.Variable(tf.ones([4, 2])), tf.Variable(1.0), tf.Variable(2.0)

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [rank % 4])) * scale * float(rank + 1)
        return sdp.DistributedGradientTape(tape).gradient(loss, {"table": table, "unused": unused, "scale": [scale]})

    for found in (gradients(), tf.function(gradients)()):
        rows = np.zeros((size, 4, 2))
        for other in range(size):
            rows[other, other % 4] = 2.0 * (other + 1)
        assert np.allclose(found["table"], rows.mean(axis=0))
        assert found["unused"] is None
        assert np.allclose(found["scale"][0], mean_of(size, lambda other: 2.0 * (other + 1)))


def check_half_precision_travels_and_comes_back_as_it_was(rank, size):
    variable = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * float(rank))
    tape = sdp.DistributedGradientTape(tape, compression=sdp.Compression.fp16)
    found = tape.gradient(loss, variable)
    assert found.dtype == tf.float32
    assert np.allclose(found, (size - 1) / 2)


def check_unsupported_arguments_are_refused(rank, size):
    tape = tf.GradientTape()
    raises(NotImplementedError, lambda: sdp.DistributedGradientTape(tape, device_dense="/gpu:0"), "leave them empty")
    raises(NotImplementedError, lambda: sdp.DistributedGradientTape(tape, op=sdp.ReduceOp.SUM), "averaged")
    raises(NotImplementedError, lambda: sdp.oob_allreduce(tf.zeros(1), op=sdp.ReduceOp.MAX), "AVERAGE only")
    raises(ValueError, lambda: sdp.allreduce(tf.zeros(1), 2, 2), "param_index 2")
    raises(TypeError, lambda: sdp.allreduce(), "allreduce takes one tensor")
    raises(ValueError, lambda: sdp.DistributedOptimizer(tf.keras.optimizers.SGD(), bucket_cap_mb=0), "bucket_cap_mb")
    raises(TypeError, lambda: sdp.DistributedOptimizer("sgd"), "no optimizer")
    once = sdp.DistributedOptimizer(tf.keras.optimizers.SGD())
    raises(ValueError, lambda: sdp.DistributedOptimizer(once), "wrap it once")


def check_operations_in_branches_loops_and_inner_functions_keep_one_order(rank, size):
    """All operations have equal sizes, so that confusing two of them gives the right size but a wrong value."""
    state = tf.Variable(0.0)

    @tf.function
    def inner(value):
        return sdp.allreduce(value * 100.0, 0, 1)

    @tf.function
    def outer(value, is_wanted):
        first = sdp.oob_allreduce(value)
        if is_wanted:
            state.assign_add(sdp.oob_allreduce(value * 10.0))
        second = inner(value)
        total = tf.constant(0.0)
        for _ in tf.range(3):
            total += sdp.oob_allreduce(value * 1000.0)
        return first, second, total, sdp.oob_allreduce(value * 7.0)

    mean = (size - 1) / 2
    for round_number in range(1, 6):
        found = outer(tf.constant(float(rank)), tf.constant(True))
        assert np.allclose([float(one) for one in found], [mean, 100 * mean, 3000 * mean, 7 * mean])
        assert np.allclose(float(state), 10 * mean * round_number)


def check_optimizers_of_keras_train_the_same_model_on_all_ranks(rank, size):
    tf.keras.utils.set_random_seed(rank)
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)])
    sdp.broadcast_variables(model.variables, root_rank=0)
    optimizer = tf.keras.optimizers.Adam(0.05)
    name = type(optimizer).__name__
    model.compile(sdp.DistributedOptimizer(optimizer), "mse")
    assert type(model.optimizer).__name__ == name
    drawn = np.random.default_rng(rank)
    images = drawn.normal(size=(32, 3)).astype("float32")
    model.fit(images, images.sum(axis=1), batch_size=8, epochs=2, verbose=0)
    for weight in model.get_weights():
        assert np.array_equal(weight, sdp.broadcast(tf.constant(weight), 0).numpy())


def check_the_keras_module_has_the_names_that_scripts_use(rank, size):
    assert sdp.keras is importlib.import_module("smdistributed.dataparallel.tensorflow.keras")
    names = "init shutdown is_initialized rank size local_rank local_size Compression ReduceOp DistributedOptimizer"
    for name in (*names.split(), "allreduce", "oob_allreduce", "broadcast", "broadcast_variables"):
        assert getattr(sdp.keras, name) is getattr(sdp, name), name
    assert sdp.keras.rank() == rank


def check_callbacks_of_keras_make_ranks_alike_and_average_metrics(rank, size):
    tf.keras.utils.set_random_seed(rank)
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)])
    model.compile(sdp.keras.DistributedOptimizer(tf.keras.optimizers.Adam(0.05)), "mse", metrics=["mae"])
    images = np.random.default_rng(rank).normal(size=(32, 3)).astype("float32")

    class Noted(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.before = dict(logs)

    noted = Noted()
    callbacks = [
        sdp.keras.callbacks.BroadcastGlobalVariablesCallback(0),
        noted,
        sdp.keras.callbacks.MetricAverageCallback(),
    ]
    told = model.fit(images, images.sum(axis=1), batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    for weight in [*model.get_weights(), *map(np.asarray, sdp.keras.callbacks.variables_of(model.optimizer))]:
        if weight.dtype.kind == "f":
            assert np.array_equal(weight, sdp.broadcast(tf.constant(weight), 0).numpy())
    for name, values in told.history.items():
        own = float(noted.before[name])
        expected = float(sdp.oob_allreduce(tf.constant(own, tf.float64)))
        assert np.isclose(values[-1], expected), (name, values, expected)


def check_objects_are_gathered_by_the_communicator_of_workers(rank, size):
    comm = sdp.get_worker_comm()
    assert (comm.Get_rank(), comm.Get_size(), comm.rank, comm.size) == (rank, size, rank, size)
    own = {"rank": rank, "boxes": [np.full(rank, rank)] * rank}
    gathered = comm.gather(own, root=size - 1)
    if rank == size - 1:
        assert [one["rank"] for one in gathered] == list(range(size))
        assert [len(one["boxes"]) for one in gathered] == list(range(size))
    else:
        assert gathered is None
    assert comm.allgather(rank == 0) == [True] + [False] * (size - 1)
    assert comm.bcast("x" * 1000 if rank == 1 else None, root=1) == "x" * 1000
    comm.Barrier()
    comm.barrier()
    raises(ValueError, lambda: comm.gather(own, root=size), "root")
    raises(AttributeError, lambda: comm.Split(), "Split", "mpi4py", "gather")


def check_graphs_of_tensorflow_1(rank, size):
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", initializer=float(rank + 1))
        loss = weight * float(rank)
        step = sdp.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0)).minimize(loss)
        averaged = sdp.oob_allreduce(loss)
        with v1.train.MonitoredSession(hooks=[sdp.BroadcastGlobalVariablesHook(0)]) as session:
            assert session.run(weight) == 1.0
            assert np.isclose(session.run(averaged), (size - 1) / 2)
            session.run(step)
            assert np.isclose(session.run(weight), 1.0 - (size - 1) / 2)


def check_a_rank_that_calls_something_else_is_told_so(rank, size):
    """The mismatch ends the group, so only the shutdown is checked after it."""
    tensor = tf.zeros([5 if rank == 0 else 3])
    raises(Exception, lambda: tf.function(lambda: sdp.oob_allreduce(tensor))(), "other number, shapes or types")
    raises(Exception, lambda: sdp.oob_allreduce(tf.constant(0.0)))


def check_nothing_works_after_shutdown(rank, size):
    sdp.shutdown()
    sdp.shutdown()
    assert not sdp.is_initialized()
    raises(Exception, sdp.rank, "not initialized", "init()")
