"""Mistakes of scripts that once silently trained nothing, or the wrong model; run by test_smp_as_called on 2 ranks."""

import logging
from functools import partial

import smdistributed.modelparallel.torch as smp
import torch
from smp_core_program import failure_of, start, train_step
from smp_models import SharedPerceptron, batch_of, loss_of, make
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from clary.train.parallel.fsdp import session as tsm
from clary.train.parallel.fsdp.state import state as tsm_state


def wrapped(**keys):
    start(microbatches=2, ddp=True, **keys)
    model = smp.DistributedModel(make(SharedPerceptron))
    return model, smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))


@smp.step
def forward_step(model, inputs, targets):
    return loss_of(model(inputs), targets)


def test_a_step_without_a_backward_pass_fails_before_the_optimizer_steps(rank, size):
    for keys in (
        {"partitions": 2},
        {"fp16": True},
        {"shard_optimizer_state": True},
        {"sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 10},
        {},
    ):
        model, optimizer = wrapped(**keys)
        forward_step(model, *batch_of(SharedPerceptron, 0))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        failure = failure_of(optimizer.step)
        assert "call model.backward(loss) in the function" in str(failure), (keys, failure)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), keys
    forward_step(model, *batch_of(SharedPerceptron, 0))  # an evaluation
    train_step(model, *batch_of(SharedPerceptron, 0))
    optimizer.step()
    if rank == 0:  # only one replica has a backward pass: the other counts as zero
        train_step(model, *batch_of(SharedPerceptron, 0))
    else:
        forward_step(model, *batch_of(SharedPerceptron, 0))
    optimizer.step()


def test_an_optimizer_that_was_not_wrapped_is_refused(rank, size):
    for keys in ({"partitions": 2}, {}):
        model, _ = wrapped(**keys)
        plain = torch.optim.Adam(model.parameters(), lr=0.1)
        other = torch.optim.Adam([torch.zeros(2, requires_grad=True)])
        train_step(model, *batch_of(SharedPerceptron, 0))
        other.step()
        assert "smp.DistributedOptimizer(optimizer)" in str(failure_of(plain.step))
        smp.shutdown()
        plain.step()  # after `shutdown` the model belongs to no program


def test_passing_the_unwrapped_model_to_a_step_is_refused(rank, size):
    for keys in ({"partitions": 2}, {}):
        start(microbatches=2, ddp=True, **keys)
        module = make(SharedPerceptron)
        model = smp.DistributedModel(module)
        inputs, targets = batch_of(SharedPerceptron, 0)
        by_place = failure_of(partial(train_step, module, inputs, targets))
        by_name = failure_of(partial(train_step, model=module, inputs=inputs, targets=targets))
        assert "pass what smp.DistributedModel returned" in str(by_place)
        assert str(by_name) == str(by_place)
        train_step(model, *batch_of(SharedPerceptron, 0))


def test_an_optimizer_of_modules_that_were_replaced_is_refused(rank, size):
    start(ddp=True, tensor_parallel_degree=2)
    with smp.tensor_parallelism():
        module = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4))
    early = torch.optim.SGD(module.parameters(), lr=0.1)
    model = smp.DistributedModel(module)
    failure = failure_of(lambda: smp.DistributedOptimizer(early))
    assert "2 of the 4 parameters of SGD are not the DistributedModel's, such as one of shape (4, 8)" in str(failure)
    smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_module_that_was_replaced_is_refused_in_a_step(rank, size):
    start(ddp=True, tensor_parallel_degree=2)
    with smp.tensor_parallelism():
        inner = nn.Linear(8, 4)
        module = nn.Sequential(inner)
    model = smp.DistributedModel(module)

    @smp.step
    def through_an_old_reference(model, inputs):
        model.backward(inner(inputs).sum())

    assert "tensor parallelism has replaced" in str(
        failure_of(lambda: through_an_old_reference(model, torch.ones(2, 8)))
    )
    inner(torch.ones(2, 8))  # outside a step the module may be called


def test_degrees_that_cut_nothing_are_refused(rank, size):
    start(ddp=True, tensor_parallel_degree=2)
    failure = failure_of(lambda: smp.DistributedModel(make(SharedPerceptron)))
    assert "tensor_parallel_degree is 2, and no module of the model is distributed" in str(failure)
    assert "none that could be was made inside smp.model_creation(tensor_parallelism=True)" in str(failure)
    with smp.tensor_parallelism():
        odd = nn.Sequential(*(nn.Linear(5, 5) for _ in range(5)))
    failure = failure_of(lambda: smp.DistributedModel(odd))
    assert "0 (Linear): kept, in_features is 5" in str(failure) or "of a weight of shape (5, 5) is 5" in str(failure)
    assert "and 2 more" in str(failure)
    for placed in ({}, {"auto_partition": False, "default_partition": 0}):
        start(partitions=2, microbatches=2, **placed)
        model = smp.DistributedModel(nn.Linear(8, 4))
        failure = failure_of(lambda model=model: train_step(model, *batch_of(SharedPerceptron, 0)))
        assert "pipeline ranks 1 would hold no module of the model" in str(failure), failure


def test_shards_that_stay_whole_are_logged(rank, size):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("clary.train.parallel.sharded.build").addHandler(handler)
    wrapped(sharded_data_parallel_degree=2)
    wrapped(sharded_data_parallel_degree=2, sdp_param_persistence_threshold=10)
    logging.getLogger("clary.train.parallel.sharded.build").removeHandler(handler)
    assert len(lines) == 1, lines
    assert (
        "sdp_param_persistence_threshold, which is 1000000, and stays whole on each rank; the largest has 256"
        in lines[0]
    )


def test_a_pipeline_is_not_run_without_a_distributed_model(rank, size):
    start(partitions=2, microbatches=2)
    failure = failure_of(lambda: train_step(make(SharedPerceptron), *batch_of(SharedPerceptron, 0)))
    assert "wrap the model in smp.DistributedModel first" in str(failure)


def test_smp_init_and_tsm_init_in_one_program_are_refused(rank, size):
    smp.shutdown()
    assert failure_of(lambda: smp.init({"partitions": 3})) is not None  # a failed `init` does not count as a use
    tsm.init({})
    failure = failure_of(lambda: smp.init({}))
    assert "smp.init of smdistributed.modelparallel was called, and tsm.init of torch.sagemaker before it" in str(
        failure
    )
    tsm_state.reset()
    smp.init({})
    failure = failure_of(lambda: tsm.init({}))
    assert "tsm.init of torch.sagemaker was called, and smp.init of smdistributed.modelparallel before it" in str(
        failure
    )
    smp.shutdown()


def test_fsdp_refuses_a_model_that_was_not_transformed(rank, size):
    smp.shutdown()
    tsm.init({"tensor_parallel_degree": 2})
    failure = failure_of(lambda: FullyShardedDataParallel(nn.Linear(4, 4)))
    assert "tensor_parallel_degree is 2, and tsm.transform was not called" in str(failure)
    tsm_state.reset()
