"""Replicas with different numbers of batches, or with a failure in a step, on two ranks; run by test_smp_overlap."""

import smdistributed.modelparallel.torch as smp
import torch
import torch.distributed as dist
from smdistributed.modelparallel.torch.exceptions import ParallelError
from smp_core_program import start, train_step
from smp_models import SharedPerceptron, batch_of, loss_of, make
from smp_overlap_program import assert_alike_everywhere, config, failure_of, own_batch, wrapped


def test_a_step_that_fails_while_gradients_are_sent_ends_averaging(rank, size):
    start(**config(size))
    model, optimizer = wrapped(SharedPerceptron)

    @smp.step
    def fails_late(model, inputs, targets):
        loss = loss_of(model(inputs), targets)
        model.backward(loss)
        if model._reducer._sent:
            raise ArithmeticError("after the last backward pass")
        return loss

    train_step(model, *own_batch(SharedPerceptron, 0))
    optimizer.step()
    assert isinstance(failure_of(lambda: fails_late(model, *own_batch(SharedPerceptron, 1))), ArithmeticError)
    error = failure_of(lambda: train_step(model, *own_batch(SharedPerceptron, 2)))
    assert isinstance(error, ParallelError), repr(error)
    assert "buckets of gradients were on their way" in str(error)


def test_replicas_may_have_different_numbers_of_batches_without_a_pipeline(rank, size):
    for divides in (True, False):
        start(**config(size))
        model, optimizer = wrapped(SharedPerceptron)
        with model.join(divide_by_initial_world_size=divides):
            for number in range(2 + rank * 2):
                optimizer.zero_grad()
                train_step(model, *own_batch(SharedPerceptron, number))
                optimizer.step()
        assert_alike_everywhere(model)
        alone = make(SharedPerceptron)
        stepping = torch.optim.AdamW(alone.parameters(), lr=0.05)
        for number in range(4):
            stepping.zero_grad()
            inputs, targets = (part.chunk(2) for part in batch_of(SharedPerceptron, number, 16))
            active = [0, 1] if number < 2 else [1]
            parts = [loss_of(alone(inputs[one]), targets[one]) for one in active]
            (sum(parts) / (2 if divides else len(active))).backward()
            stepping.step()
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, alone.state_dict()[name], atol=2e-5, rtol=1e-4, msg=name)
        optimizer.zero_grad()
        train_step(model, *own_batch(SharedPerceptron, 0))  # after `join`, replicas step together again


def test_throw_on_early_termination_raises_when_the_first_replica_ends(rank, size):
    start(**config(size))
    model, optimizer = wrapped(SharedPerceptron)

    def run():
        with model.join(throw_on_early_termination=True):
            for number in range(1 + rank):
                train_step(model, *own_batch(SharedPerceptron, number))
                optimizer.step()

    error = failure_of(run)
    assert isinstance(error, RuntimeError), repr(error)
    assert "ranks [0] have no more batches, but ranks [1] still have some" in str(error), str(error)


def test_an_exception_in_the_join_block_is_raised_without_a_wait(rank, size):
    start(**config(size))
    model, _ = wrapped(SharedPerceptron)

    def run():
        with model.join():
            raise KeyError("own")

    assert isinstance(failure_of(run), KeyError)
    dist.barrier()


def test_join_is_refused_where_replicas_must_step_together(rank, size):
    for keys in ({"partitions": 2}, {"fp16": True}, {"bf16": True}, {"tensor_parallel_degree": 2}):
        start(**config(size, **keys))
        with smp.tensor_parallelism(enabled="tensor_parallel_degree" in keys):
            model, _ = wrapped(SharedPerceptron)
        error = failure_of(model.join)
        assert isinstance(error, ValueError), (keys, repr(error))
        assert "same number of batches" in str(error)
        with model.join(enable=False):
            train_step(model, *own_batch(SharedPerceptron, 0))


def test_a_grad_scaler_is_refused_inside_join(rank, size):
    start(**config(size))
    model, optimizer = wrapped(SharedPerceptron)
    scaler = smp.amp.GradScaler(init_scale=8.0)

    def run():
        with model.join():
            train_step(model, *own_batch(SharedPerceptron, 0))
            scaler.step(optimizer)

    assert "GradScaler" in str(failure_of(run))
    dist.barrier()
