"""Unusual but valid scripts for SMP, on two ranks; run by test_smp_edges."""

import copy
from functools import partial

import smdistributed.modelparallel.torch as smp
import torch
from smdistributed.modelparallel.torch.exceptions import ParallelError
from smp_axes_program import Tall, make_tall, share
from smp_core_program import assert_like_alone, failure_of, start, train, train_step, wrapped
from smp_models import Record, SharedPerceptron, batch_of, loss_of, make, train_alone
from torch import nn


class Repeated(nn.Module):
    """Holds one activation and one layer twice in a sequence."""

    def __init__(self):
        super().__init__()
        act, layer = nn.Tanh(), nn.Linear(16, 16)
        self.sequence = nn.Sequential(
            nn.Linear(8, 16), act, layer, act, nn.Linear(16, 16), act, layer, nn.Linear(16, 4)
        )

    def forward(self, x):
        return self.sequence(x)


class Halves(nn.Module):
    """Takes and returns a dataclass, and changes its input in place."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(16))

    def forward(self, pair):
        pair.two[0] += 1.0
        return Record(pair.one * self.gain, [pair.two[0] * 2])


class Records(nn.Module):
    """Passes a dataclass to a module on another rank."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.halves = Halves()
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        hidden = self.first(x)
        found = self.halves(Record(hidden, [hidden * 0.5]))
        return self.last(found.one + found.two[0])


def test_a_layer_that_occurs_twice_in_a_sequence_runs_twice(rank, size):
    assert_like_alone(Repeated, 2, partitions=2)


class Trainer:
    """A trainer as in public scripts: one of its steps takes no `self`, and is called by the instance all the same."""

    @smp.step
    def plain_step(model, inputs, targets):
        return train_once(model, inputs, targets)

    @smp.step(non_split_inputs=["self"])
    def method_step(self, model, inputs, targets):
        assert isinstance(self, Trainer)
        return train_once(model, inputs, targets)


def train_once(model, inputs, targets):
    loss = loss_of(model(inputs), targets)
    model.backward(loss)
    return loss


def test_a_step_of_a_class_gets_the_instance_only_if_it_takes_self(rank, size):
    start(partitions=2)
    model, optimizer = wrapped(SharedPerceptron)
    inputs, targets = batch_of(SharedPerceptron, 0)
    found = []
    for step in (Trainer().plain_step, Trainer().method_step, train_step):
        optimizer.zero_grad()
        found.append(step(model, inputs, targets).reduce_mean())
    assert found[0] == found[1] == found[2], found


def test_dataclasses_pass_between_ranks_and_inputs_may_be_changed_in_place(rank, size):
    start(partitions=2, microbatches=2, auto_partition=False, default_partition=0)
    module = make(Records)
    smp.set_partition(module.halves, index=1)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
    expected, _, _ = train_alone(Records, 2)
    losses = train(model, optimizer, Records)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), atol=1e-5, rtol=1e-4)


def test_a_hook_after_a_step_is_called_once(rank, size):
    start(partitions=2)
    model, optimizer = wrapped(SharedPerceptron)
    calls = []
    model.register_post_step_hook(lambda *_: calls.append("step"))
    model.register_post_partition_hook(lambda *_: calls.append("partition"))
    train(model, optimizer, SharedPerceptron)
    assert calls == ["partition", "step"]
    model.register_post_partition_hook(lambda *_: calls.append("late"))
    assert calls[-1] == "late"


def test_weights_loaded_after_the_optimizer_was_made_are_kept(rank, size):
    for degrees in ({"partitions": 2}, {"ddp": True}, {"ddp": True, "shard_optimizer_state": True}):
        for precision in ("fp16", "bf16"):
            start(**degrees, **{precision: True})
            model = smp.DistributedModel(make(SharedPerceptron))
            optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
            given = {name: torch.full_like(value, 0.25) for name, value in make(SharedPerceptron).state_dict().items()}
            model.load_state_dict(given)  # with a pipeline: before modules are assigned to ranks
            for _ in range(2):
                optimizer.zero_grad()
                train_step(model, *batch_of(SharedPerceptron, 0))
                optimizer.step()
                assert not optimizer.overflow
                for name, value in model.state_dict().items():
                    assert torch.all(value == 0.25), (degrees, precision, name)
                model.load_state_dict(given)


def test_zero_grad_of_the_model_clears_gradients_of_shards(rank, size):
    norms = []
    for forgets in (True, False):
        start(ddp=True, sharded_data_parallel_degree=2, sdp_param_persistence_threshold=10)
        model = smp.DistributedModel(make(SharedPerceptron))
        optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
        for _ in range(2):
            if forgets:
                model.zero_grad()
            train_step(model, *batch_of(SharedPerceptron, 0))
            optimizer.step()
        norms.append(optimizer._global_grad_norm)
    assert norms[1] > norms[0] * 1.05, norms  # without zero_grad, each step adds to gradients that were clipped to 1


def test_tensor_ranks_clip_by_one_norm(rank, size):
    start(ddp=True, tensor_parallel_degree=2, fp16=True, prescaled_batch=True)
    model = smp.DistributedModel(make_tall())
    torch.manual_seed(7)
    model.load_state_dict(Tall().state_dict())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    inputs, targets = share(Tall, 0)
    alone = make_tall(cut=False).half().float()
    loss_of(alone(inputs.half().float()), targets).backward()
    expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1).item()
    for _ in range(2):
        optimizer.zero_grad()
        train_step(model, inputs, targets)
        norm = optimizer.clip_master_grads(0.1)
        norms = smp.allgather(norm, smp.TP_GROUP)
        assert norms[0] == norms[1], norms
        if expected is not None:
            assert abs(norm - expected) < 0.02 * expected, (norm, expected)
            expected = None
        optimizer.step()
        copies = {name: one for name, one in model.named_parameters() if getattr(one, "tensor_slice", None) is None}
        for name, values in copies.items():
            ours, theirs = smp.allgather(values.detach(), smp.TP_GROUP)
            assert torch.equal(ours, theirs), name


def test_small_gradients_are_scaled_back_in_float32(rank, size):
    start(ddp=True, fp16=True, shard_optimizer_state=True)
    model = smp.DistributedModel(nn.Linear(4, 1, bias=False))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e6), static_loss_scale=2.0**14)

    @smp.step
    def tiny(model, x):
        loss = model(x).sum() * 1e-8
        model.backward(loss)
        return loss

    with torch.no_grad():
        model.module.weight.zero_()
    model.load_state_dict(model.state_dict())
    optimizer.zero_grad()
    tiny(model, torch.ones(1, 4))
    optimizer.step()
    expected = torch.full((1, 4), -0.01, dtype=torch.float16)
    torch.testing.assert_close(model.state_dict()["weight"], expected, atol=1e-4, rtol=1e-2)


def test_steps_add_up_before_a_spread_optimizer_steps(rank, size):
    start(ddp=True, shard_optimizer_state=True)
    model, optimizer = wrapped(SharedPerceptron)
    optimizer.zero_grad()
    alone = make(SharedPerceptron)
    for number in range(2):
        inputs, targets = batch_of(SharedPerceptron, number)
        own = slice(rank * 4, rank * 4 + 4)
        train_step(model, inputs[own], targets[own])
        loss_of(alone(inputs), targets).backward()
    optimizer.step()
    torch.optim.AdamW(alone.parameters(), lr=0.05).step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, alone.state_dict()[name], atol=1e-5, rtol=1e-4)


def test_an_evaluation_during_gradient_accumulation_keeps_replicas_alike(rank, size):
    start(ddp=True)
    model, optimizer = wrapped(SharedPerceptron, backward_passes_per_step=4)

    @smp.step
    def evaluate(model, inputs):
        with torch.no_grad():
            return model(inputs)

    own = slice(rank * 4, rank * 4 + 4)
    for number in range(2):
        inputs, targets = batch_of(SharedPerceptron, number)
        train_step(model, inputs[own], targets[own])
    evaluate(model, inputs)
    optimizer.step()
    ours, theirs = smp.allgather(model.state_dict(), smp.WORLD)
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def test_a_fused_optimizer_is_given_unscaled_gradients(rank, size):
    start(ddp=True)
    states = []
    for fused in (False, True):
        start(ddp=True)
        model = smp.DistributedModel(make(SharedPerceptron))
        optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, fused=fused))
        scaler = smp.amp.GradScaler(init_scale=1024.0)
        inputs, targets = batch_of(SharedPerceptron, 0)
        scaler.scale(loss_of(model(inputs), targets)).backward()
        scaler.step(optimizer)
        scaler.update()
        states.append(model.state_dict())
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value)


def test_a_rank_without_gradients_keeps_pace_after_a_skipped_step(rank, size):
    start(ddp=True)
    model = smp.DistributedModel(make(SharedPerceptron))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scaler = smp.amp.GradScaler(init_scale=8.0)
    inputs, targets = batch_of(SharedPerceptron, 0)
    for number, factor in enumerate((1.0, float("inf"), 1.0, 1.0)):
        optimizer.zero_grad()
        before = copy.deepcopy(model.state_dict())
        if rank == 0:  # the other replica has no batch
            scaler.scale(loss_of(model(inputs), targets) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        is_skipped = all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert is_skipped == (factor != 1.0), number
        ours, theirs = smp.allgather(model.state_dict(), smp.WORLD)
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items()), number
    assert scaler.get_scale() == 4.0


def test_a_group_added_after_steps_trains_as_one_process_does(rank, size):
    for keys in ({}, {"partitions": 2, "microbatches": 2}, {"bf16": True}, {"fp16": True}):
        start(ddp=True, **keys)
        model = smp.DistributedModel(make(SharedPerceptron))
        alone = make(SharedPerceptron)
        optimizer = smp.DistributedOptimizer(
            torch.optim.SGD(model.get_module().head.parameters(), lr=0.4, momentum=0.9)
        )
        expected = torch.optim.SGD(alone.head.parameters(), lr=0.4, momentum=0.9)
        is_half = "fp16" in keys or "bf16" in keys
        for number in range(4):
            if number == 2:
                group = {"params": iter(model.get_module().middle.parameters()), "lr": 1.0}
                optimizer.add_param_group(group)
                expected.add_param_group({"params": alone.middle.parameters(), "lr": 1.0})
                stepped = [one for one in group["params"] if one.dtype is torch.float32]
                assert stepped if "partitions" in keys else len(stepped) == 4, keys
            inputs, targets = batch_of(SharedPerceptron, number)
            train_step(model, inputs, targets)
            norm = optimizer.clip_master_grads(0.5)
            assert norm > 0, norm
            optimizer.step()
            model.zero_grad()
            loss_of(alone(inputs), targets).backward()
            torch.nn.utils.clip_grad_norm_([one for group in expected.param_groups for one in group["params"]], 0.5)
            expected.step()
            alone.zero_grad()
        gathered = model.state_dict()
        moved = gathered["middle.0.weight"].detach().float() - make(SharedPerceptron).middle[0].weight
        assert moved.abs().max() > 0.03, (keys, moved.abs().max())
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(
                gathered[name].float(), value, atol=1e-2 if is_half else 1e-5, rtol=1e-2 if is_half else 1e-4
            )
        saved = optimizer.state_dict()
        assert sorted(saved["state"]) == list(range(6))
        if is_half:
            assert sorted(saved["masters"]) == list(range(6))
        optimizer.load_state_dict(saved)
        assert sorted(optimizer.state_dict()["state"]) == list(range(6))
        assert len(optimizer.param_name_to_index()) == 6


def test_groups_that_would_not_be_trained_are_refused(rank, size):
    start(ddp=True, fp16=True)
    model = smp.DistributedModel(make(SharedPerceptron))
    first, *others = model.parameters()
    optimizer = smp.DistributedOptimizer(torch.optim.SGD([first], lr=0.1))
    strange = nn.Parameter(torch.zeros(3))
    for params, words in (
        (strange, "1 of the 1 parameters of SGD are not the DistributedModel's, such as one of shape (3,)"),
        ([first, others[0]], "are in a group already"),
    ):
        failure = failure_of(lambda params=params: optimizer.add_param_group({"params": params}))
        assert words in str(failure), failure
        assert len(optimizer.param_groups) == 1
    for keys, name in (
        ({"shard_optimizer_state": True}, "shard_optimizer_state"),
        ({"sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 10}, "sharded_data_parallel_degree"),
    ):
        start(ddp=True, **keys)
        model = smp.DistributedModel(make(SharedPerceptron))
        first, *others = model.parameters()
        optimizer = smp.DistributedOptimizer(torch.optim.SGD([first], lr=0.1))
        failure = failure_of(partial(optimizer.add_param_group, {"params": others}))
        assert f"with {name}" in str(failure), failure
        assert "with lr=0" in str(failure), failure
        assert len(optimizer.param_groups) == 1


def test_a_grad_scaler_with_fp16_is_refused(rank, size):
    start(fp16=True, ddp=True)
    model = smp.DistributedModel(make(SharedPerceptron))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train_step(model, *batch_of(SharedPerceptron, 0))
    assert "leave GradScaler out" in str(failure_of(lambda: smp.amp.GradScaler().step(optimizer)))


def test_a_grad_scaler_with_spread_half_precision_is_refused(rank, size):
    for precision in ("fp16", "bf16"):
        start(ddp=True, shard_optimizer_state=True, **{precision: True})
        model = smp.DistributedModel(make(SharedPerceptron))
        optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        train_step(model, *batch_of(SharedPerceptron, 0))
        before = copy.deepcopy(model.state_dict())
        scaler = smp.amp.GradScaler()
        for call in (scaler.unscale_, scaler.step):
            assert "leave GradScaler out" in str(failure_of(partial(call, optimizer))), precision
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), precision
        smp.amp.GradScaler(enabled=False).step(optimizer)
        assert not all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), precision


class Gained(nn.Module):
    """Ends with a parameter that stays float32 where the other is half precision."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.gain = nn.LayerNorm(4)

    def forward(self, x):
        return self.gain(self.first(x.to(self.first.weight.dtype)).float())


def test_clipped_float32_gradients_are_unscaled_once(rank, size):
    found = []
    for num_clips in (0, 1, 2):
        start(ddp=True, fp16=True)
        torch.manual_seed(3)
        model = smp.DistributedModel(Gained())
        model.get_module().gain.float()
        optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), static_loss_scale=1024.0)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            train_step(model, torch.arange(8.0).view(2, 4) / 8, torch.ones(2, 4))
            norms = [optimizer.clip_master_grads(1e6) for _ in range(num_clips)]
            assert len(set(norms)) < 2, norms
            optimizer.step()
        found.append(model.state_dict())
    for one in found[1:]:
        for name, value in one.items():
            assert torch.equal(value, found[0][name]), name


def test_loss_backward_is_refused_in_a_pipeline_and_with_fp16(rank, size):
    @smp.step
    def past(model, inputs, targets):
        loss = loss_of(model(inputs), targets)
        loss.backward()
        return loss

    for config in ({"partitions": 2}, {"fp16": True, "ddp": True}):
        start(**config)
        model = smp.DistributedModel(make(SharedPerceptron))
        error = failure_of(lambda model=model: past(model, *batch_of(SharedPerceptron, 0)))
        assert isinstance(error, ParallelError), repr(error)
        assert "model.backward(loss)" in str(error), repr(error)


def test_the_state_of_an_optimizer_over_slices_is_whole_and_loads(rank, size):
    start(ddp=True, tensor_parallel_degree=2)
    model = smp.DistributedModel(make_tall())
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
    train_step(model, *share(Tall, 0))
    optimizer.step()
    whole = optimizer.state_dict()
    shapes = {tuple(one["exp_avg"].shape) for one in whole["state"].values()}
    assert shapes == {tuple(one.shape) for one in Tall().parameters()}, shapes
    before = copy.deepcopy(optimizer.local_state_dict())
    train_step(model, *share(Tall, 1))
    optimizer.step()
    optimizer.load_state_dict(whole)
    after = optimizer.local_state_dict()
    for number, one in before["state"].items():
        assert torch.equal(one["exp_avg"], after["state"][number]["exp_avg"]), number
