"""Checks of `horovod.tensorflow` and `horovod.tensorflow.keras` on several ranks."""

import os
import pickle
import tempfile

import horovod.keras
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf

hvd.init(process_sets="dynamic")


def raises(error, act, *words):
    """Assert that a call raises an error with these words."""
    raised = None
    try:
        act()
    except error as caught:
        raised = caught
    assert raised is not None, f"nothing raised {error}"
    assert all(word in str(raised) for word in words), raised


def both(act):
    """Yield the results of a function in eager mode and inside `tf.function`."""
    yield act()
    yield tf.function(act)()


def check_ranks(rank, size):
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (rank, size, rank, size)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    for numbers in both(lambda: (hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op())):
        assert [int(number) for number in numbers] == [rank, size, rank, size]
    assert [int(hvd.process_set_included_op(number)) for number in (0, 17)] == [1, -1]


def check_reductions(rank, size):
    values = tf.constant([1, 2, 3]) + rank
    expected = {hvd.Sum: np.sum, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod, hvd.Average: np.mean}
    together = np.array([[1, 2, 3]]) + np.arange(size)[:, None]
    for op, reduce in expected.items():
        for dtype in (tf.float32, tf.float64, tf.bfloat16, tf.int64):
            for found in both(lambda op=op, dtype=dtype: hvd.allreduce(tf.cast(values, dtype), op=op)):
                right = reduce(together, axis=0)
                assert np.allclose(tf.cast(found, tf.float64), np.trunc(right) if dtype is tf.int64 else right)
    scaled = hvd.allreduce(tf.ones(2), op=hvd.Sum, prescale_factor=3.0, postscale_factor=0.5)
    assert np.allclose(scaled, size * 1.5)
    for found in both(lambda: hvd.grouped_allreduce([tf.ones(2), tf.ones([2, 2], tf.float64)], op=hvd.Sum)):
        assert [one.numpy().max() for one in found] == [size, size]
    assert hvd.allreduce(tf.ones(2), compression=hvd.Compression.fp16).dtype == tf.float32
    if size == 2:
        assert np.allclose(hvd.allreduce(tf.constant([1.0, 0.0]), op=hvd.Adasum), [1.0, 0.0])


def check_exchanges(rank, size):
    rows = [[other] * 2 for other in range(size) for _ in range(other + 1)]
    for found in both(lambda: hvd.allgather(tf.fill([rank + 1, 2], rank))):
        assert found.numpy().tolist() == rows
    assert hvd.allgather(tf.constant(rank)).numpy().tolist() == list(range(size))
    for found in both(lambda: hvd.grouped_allgather([tf.fill([1], rank), tf.fill([rank], 1.0)])):
        assert found[0].numpy().tolist() == list(range(size))
        assert len(found[1]) == size * (size - 1) // 2
    for found in both(lambda: hvd.broadcast(tf.cast([rank], tf.uint16), root_rank=size - 1)):
        assert found.numpy().tolist() == [size - 1]
    splits = tf.range(1, size + 1)
    for rows_here, received in both(lambda: hvd.alltoall(tf.fill([size * (size + 1) // 2], rank), splits=splits)):
        assert rows_here.numpy().tolist() == [other for other in range(size) for _ in range(rank + 1)]
        assert received.numpy().tolist() == [rank + 1] * size
    assert hvd.alltoall(tf.fill([size], rank)).numpy().tolist() == list(range(size))
    for found in both(lambda: hvd.reducescatter(tf.range(size + 1.0), op=hvd.Sum)):
        first = rank + min(rank, 1)
        assert np.allclose(found, size * np.arange(first, first + 1 + (rank == 0)))


def check_gradients_flow_through_operations(rank, size):
    value = tf.Variable([1.0, 2.0]) if rank % 2 else tf.Variable([3.0, 4.0])
    wanted = tf.constant([5.0, 7.0]) * float(rank + 1)
    mean = np.array([5.0, 7.0]) * (size + 1) / 2

    def gradient_of(act):
        with tf.GradientTape() as tape:
            result = act()
        return tape.gradient(result, value)

    for found in both(lambda: gradient_of(lambda: tf.reduce_sum(hvd.allreduce(value, op=hvd.Sum) * wanted))):
        assert np.allclose(found, mean * size)
    for found in both(lambda: gradient_of(lambda: tf.reduce_sum(hvd.broadcast(value, 0) * wanted))):
        assert np.allclose(found, mean if rank == 0 else 0.0)
    for found in both(lambda: gradient_of(lambda: tf.reduce_sum(hvd.allgather(value) * tf.tile(wanted, [size])))):
        assert np.allclose(found, mean)
    doubled = gradient_of(lambda: hvd.alltoall(tf.tile(value, [size])) * 2.0)
    assert np.allclose(doubled, 2.0 * size)
    scattered = gradient_of(lambda: hvd.reducescatter(tf.tile(value[None], [size, 1]), op=hvd.Sum) * 3.0)
    assert np.allclose(scattered, 3.0 * size * size)


def check_a_rank_joins_early(rank, size):
    for _ in range(rank + 1):
        found = hvd.allreduce(tf.ones(2), op=hvd.Sum, name="joined")
        assert found.numpy()[0] >= 1
    assert int(hvd.join()) == size - 1


def check_process_sets(rank, size):
    everybody_else = hvd.add_process_set(list(range(1, size)))
    if rank:
        found = hvd.allreduce(tf.ones(2) * float(rank), op=hvd.Sum, process_set=everybody_else)
        assert np.allclose(found, sum(range(1, size)))
    else:
        raises(ValueError, lambda: hvd.allreduce(tf.ones(2), process_set=everybody_else), "not in process set")
    variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = variable * float(rank)
    found = hvd.DistributedGradientTape(tape, process_set=everybody_else).gradient(loss, [variable])
    assert np.allclose(found[0], np.mean(range(1, size)) if rank else 0.0)
    hvd.remove_process_set(everybody_else)


def check_process_sets_that_were_not_added_are_refused(rank, size):
    stranger, variable = hvd.ProcessSet([1]), tf.Variable(1.0)

    def gradient(wrap, **options):
        with tf.GradientTape() as tape:
            loss = variable * float(rank)
        wrap(tape, process_set=stranger, **options).gradient(loss, [variable])

    def local_gradient():
        layer = tf.keras.layers.Dense(1)
        layer.build((None, 1))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.ones([1, 1])))
        tape = hvd.PartialDistributedGradientTape(tape, process_set=stranger, local_layers=[layer])
        tape.gradient(loss, layer.trainable_weights)

    raises(ValueError, lambda: hvd.broadcast_variables([variable], 1, process_set=stranger), "was not added")
    raises(ValueError, lambda: gradient(hvd.DistributedGradientTape), "was not added")
    raises(ValueError, lambda: gradient(hvd.DistributedGradientTape, groups=1), "was not added")
    raises(ValueError, local_gradient, "was not added")
    os.environ["HOROVOD_ELASTIC"] = "1"
    try:
        raises(ValueError, lambda: gradient(hvd.DistributedGradientTape), "was not added")
    finally:
        del os.environ["HOROVOD_ELASTIC"]


def check_tapes(rank, size):
    table, unused, scale = tf.Variable(tf.ones([4, 2])), tf.Variable(1.0), tf.Variable(2.0)

    def gradients(**options):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [rank % 4])) * scale * float(rank + 1)
        tape = hvd.DistributedGradientTape(tape, **options)
        return [
            one if one is None else tf.convert_to_tensor(one) for one in tape.gradient(loss, [table, unused, scale])
        ]

    rows = np.zeros((4, 2))
    for other in range(size):
        rows[other % 4] += 2.0 * (other + 1) / size
    for options in (
        {},
        {"sparse_as_dense": True},
        {"groups": 2},
        {"groups": [[table, scale]], "sparse_as_dense": True},
    ):
        for found in both(lambda options=options: gradients(**options)):
            assert np.allclose(found[0], rows)
            assert found[1] is None
            assert np.allclose(found[2], size + 1)
    assert np.allclose(gradients(op=hvd.Sum, sparse_as_dense=True)[2], (size + 1) * size)
    assert np.allclose(gradients(gradient_predivide_factor=2.0, sparse_as_dense=True)[2], size + 1)
    raises(ValueError, lambda: gradients(op=hvd.Sum, gradient_predivide_factor=2.0), "predivide")


def check_layers_may_be_left_to_their_rank(rank, size):
    local, shared = tf.keras.layers.Dense(1, use_bias=False), tf.keras.layers.Dense(1, use_bias=False)
    model = tf.keras.Sequential([tf.keras.layers.Input((1,)), local, shared])
    model.set_weights([np.ones((1, 1)), np.ones((1, 1))])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.fill([1, 1], float(rank + 1))))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=[local])
    own, everybodys = tape.gradient(loss, model.trainable_weights)
    assert np.allclose(own, (rank + 1) / size), "of a local layer it is divided by the number of ranks alone"
    assert np.allclose(everybodys, (size + 1) / 2)


def check_variables_and_objects(rank, size):
    variables = [tf.Variable([float(rank)] * 2), tf.Variable(rank)]
    hvd.broadcast_variables(variables, root_rank=1)
    assert [variables[0].numpy().tolist(), int(variables[1])] == [[1.0, 1.0], 1]
    variables[1].assign(rank)
    assert [int(one) for one in hvd.broadcast_(variables[1:], 0)] == [0]
    assert hvd.broadcast_object({"rank": rank}, root_rank=1) == {"rank": 1}
    assert hvd.allgather_object("x" * rank) == ["x" * other for other in range(size)]
    raises(RuntimeError, lambda: hvd.broadcast_global_variables(0), "broadcast_variables")


def check_mistakes_are_told_on_all_ranks(rank, size):
    wrong = tf.ones([2 + rank])
    raises(hvd.HorovodInternalError, lambda: hvd.allreduce(wrong, name="wrong"), "mismatched shape")
    raises(tf.errors.FailedPreconditionError, lambda: hvd.allreduce(wrong, name="wrong again"), "mismatched shape")
    in_graph = tf.function(lambda: hvd.allreduce(wrong, name="wrong in a graph"))
    raises(tf.errors.OpError, in_graph, "HorovodInternalError", "mismatched shape")
    raises(tf.errors.InvalidArgumentError, lambda: hvd.alltoall(tf.ones(3), splits=[3] * size), "splits")
    raises(ValueError, lambda: hvd.allreduce(tf.constant(1j)), "complex")
    assert hvd.allreduce(tf.ones(1), op=hvd.Sum).numpy() == [size], "the group goes on"


def check_batch_norm_of_keras_is_over_all_ranks(rank, size):
    values = tf.constant([[float(rank)], [float(rank) + 10.0]])
    layer = hvd.SyncBatchNormalization(momentum=0.0, epsilon=0.0)
    layer(values, training=True)
    together = np.array([other + shift for other in range(size) for shift in (0.0, 10.0)])
    assert np.allclose(layer.moving_mean, together.mean())
    assert np.allclose(layer.moving_variance, together.var(), rtol=1e-4)
    raises(ValueError, lambda: hvd.SyncBatchNormalization(fused=True), "fused")


def make_model(rank):
    tf.keras.utils.set_random_seed(rank)
    return tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)])


def digits_of(rank):
    images = np.random.default_rng(rank).normal(size=(32, 3)).astype("float32")
    return images, images.sum(axis=1)


def check_fit_of_keras_with_all_callbacks(rank, size):
    model = make_model(rank)
    optimizer = tf.keras.optimizers.SGD(0.05 * size, momentum=0.9)
    model.compile(hvd_keras.DistributedOptimizer(optimizer), "mse")
    callbacks = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
        horovod.keras.callbacks.LearningRateWarmupCallback(0.05 * size, warmup_epochs=2),
        hvd_keras.callbacks.LearningRateScheduleCallback(0.05 * size, 0.1, start_epoch=3),
    ]
    history = model.fit(*digits_of(rank), batch_size=8, epochs=5, verbose=0, callbacks=callbacks).history
    assert np.allclose(hvd.broadcast(tf.constant(history["loss"]), 0), history["loss"]), "metrics are averages"
    assert np.allclose(history["lr"][1:4], 0.05 * size)
    assert np.allclose(history["lr"][4], 0.005 * size)
    assert history["lr"][0] < history["lr"][1]
    for weight in model.get_weights():
        assert np.array_equal(weight, hvd.broadcast(tf.constant(weight), 0))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        loaded = hvd_keras.load_model(path)
    assert type(loaded.optimizer).__name__ == "SGD"
    loaded.fit(*digits_of(rank), batch_size=8, verbose=0)
    for weight in loaded.get_weights():
        assert np.array_equal(weight, hvd.broadcast(tf.constant(weight), 0))


def check_optimizers_of_keras_add_up_passes(rank, size):
    weight = tf.Variable([1.0, 1.0])
    optimizer = hvd.DistributedOptimizer(
        tf.keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=True
    )

    @tf.function
    def step(scale):
        optimizer.apply_gradients([(tf.constant([1.0, 2.0]) * scale * float(rank + 1), weight)])

    mean = (size + 1) / 2
    for scale, expected in ((1.0, [0.0, 0.0]), (3.0, [2.0, 4.0]), (5.0, [2.0, 4.0]), (5.0, [7.0, 14.0])):
        step(tf.constant(scale))
        assert np.allclose(weight, 1.0 - np.array(expected) * mean)
    assert int(optimizer.iterations) == 4


def check_elastic_state_of_keras_goes_back_to_its_commit_when_an_operation_fails(rank, size):
    model = make_model(rank)
    model.compile(tf.keras.optimizers.Adam(0.1), "mse")
    state = hvd_keras.elastic.KerasState(model, batch=rank, epoch=0)
    weights = []

    @hvd.elastic.run
    def train(state):
        weights.append(hvd.allgather_object(model.get_weights()[0].tolist()))
        assert state.batch == 0, "of rank 0"
        if state.epoch == 0:
            model.fit(*digits_of(0), batch_size=16, verbose=0)
            state.epoch = 1
            state.commit()
            model.fit(*digits_of(rank), verbose=0)
            state.epoch = 2
            tf.function(lambda: hvd.allreduce(tf.ones([2 + rank]), name="fails in a graph"))()
        return state.epoch

    assert train(state) == 1
    assert len(weights) == 2
    for before, after in zip(weights[0], weights[1], strict=True):
        assert before == weights[0][0], "all ranks begin with the model of rank 0"
        assert after == weights[1][0] != before, "all ranks go on from the commit"
    variables = [tf.Variable(float(rank))]
    plain = hvd.elastic.TensorFlowState(variables, step=rank)
    plain.sync()
    assert (float(variables[0]), plain.step) == (0.0, 0)
    variables[0].assign(5.0)
    plain.restore()
    assert float(variables[0]) == 0.0
    raises(ValueError, lambda: hvd_keras.elastic.KerasState(tf.keras.Sequential([tf.keras.layers.Dense(1)])), "built")


def check_callbacks_of_keras_keep_the_elastic_state(rank, size):
    model = make_model(0)
    model.compile(tf.keras.optimizers.SGD(0.01), "mse")
    state = hvd_keras.elastic.KerasState(model, batch=0, epoch=0)
    commits = []
    state.commit = lambda: commits.append((state.epoch, state.batch))
    elastic = hvd_keras.elastic
    callbacks = [
        elastic.UpdateBatchStateCallback(state),
        elastic.UpdateEpochStateCallback(state),
        elastic.CommitStateCallback(state, batches_per_commit=3),
    ]
    model.fit(*digits_of(0), batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    assert commits == [(0, 2), (1, 0), (1, 1), (2, 0)]
    assert (state.epoch, state.batch) == (2, 0)


def check_a_commit_contains_no_later_changes(rank, size):
    variable = tf.Variable([1.0])
    state = hvd.elastic.TensorFlowState([variable], seen=[1], batch=1)
    state.save()
    pack = state.packer()
    state.seen.append(2)
    state.batch = 2
    variable.assign([2.0])
    state.unpack(pack())
    state.restore()
    assert (state.seen, state.batch, variable.numpy().tolist()) == ([1], 1, [1.0])
    state.seen = [lambda: None]  # has no pickle
    state.save()
    raises((pickle.PicklingError, AttributeError), state.packer())


def check_keras_takes_no_xla_here(rank, size):
    model = make_model(0)
    model.compile(tf.keras.optimizers.SGD(), "mse")
    assert not getattr(model, "jit_compile", False)


def check_graphs_of_tensorflow_1(rank, size):
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", initializer=float(rank + 1))
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
        step = optimizer.minimize(weight * float(rank))
        averaged = hvd.allreduce(weight * float(rank))
        with v1.train.MonitoredSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
            assert session.run(weight) == 1.0
            assert np.isclose(session.run(averaged), (size - 1) / 2)
            session.run(step)
            assert session.run(weight) == 1.0
            session.run(step)
            assert np.isclose(session.run(weight), 1.0 - 2 * (size - 1) / 2)


def check_graphs_of_tensorflow_1_order_around_branches(rank, size):
    v1 = tf.compat.v1
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            before = hvd.allreduce(tf.constant(1.0), op=hvd.Sum)
            v1.cond(v1.placeholder_with_default(True, []), lambda: hvd.allreduce(before), lambda: before)
            after = hvd.allreduce(tf.constant(3.0), op=hvd.Sum)
            first, inside, last = [op for op in graph.get_operations() if "PyFunc" in op.type]
            waits_for = [op.name for source in last.inputs for op in source.op.control_inputs]
            assert first.name in waits_for, (first.name, inside.name, waits_for)
            with v1.Session() as session:
                assert session.run([before, after]) == [size, 3.0 * size]
    finally:
        v1.enable_control_flow_v2()


def check_the_group_can_be_left(rank, size):
    hvd.shutdown()
    assert not hvd.is_initialized()
    raises(ValueError, hvd.rank)
