"""Optimizers whose state is sharded over ranks, compared with the same optimizer on every rank."""

import copy

import torch
import torch.distributed as dist
from torch import nn

from clary.train.parallel.sharded.optimizer_state import ShardedStateOptimizer

_STEPS = 4
_KINDS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "adafactor": (torch.optim.Adafactor, {"lr": 0.01}),  # needs whole matrices
}


class Uneven(nn.Module):
    """Parameters of all sizes, some of them unused or used in odd steps only."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 40)
        self.odd = nn.Linear(40, 40)
        self.last = nn.Linear(40, 3)
        self.unused = nn.Linear(5, 5)
        self.scalar = nn.Parameter(torch.tensor(1.5))

    def forward(self, features, step):
        hidden = torch.relu(self.first(features)) * self.scalar
        return self.last(self.odd(hidden) if step % 2 else hidden)


def model():
    torch.manual_seed(3)
    return Uneven()


def optimizer_of(module, kind):
    parameters = list(module.parameters())
    make, options = _KINDS[kind]
    return make([{"params": parameters[::2]}, {"params": parameters[1::2], "weight_decay": 0.2}], **options)


def spread(module, kind, **options):
    return ShardedStateOptimizer(optimizer_of(module, kind), lambda _: dist.group.WORLD, **options)


def backward(module, rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    features = torch.randn(4, 12, generator=generator).to(next(module.parameters()).dtype)
    module(features, step).square().mean().backward()


def average_in_order(module, size):
    """Average gradients as the owning ranks do: summed in the order of ranks, in 32 bits."""
    for parameter in module.parameters():
        if parameter.grad is None:
            continue
        everyone = [torch.empty_like(parameter) for _ in range(size)]
        dist.all_gather(everyone, parameter.grad)
        total = everyone[0].float()
        for other in everyone[1:]:
            total.add_(other)
        parameter.grad = total.div_(size).to(parameter.dtype)


def train_plain(rank, size, kind, steps=range(_STEPS), module=None, optimizer=None):
    module = module or model()
    optimizer = optimizer or optimizer_of(module, kind)
    for step in steps:
        optimizer.zero_grad()
        backward(module, rank, step)
        average_in_order(module, size)
        optimizer.step()
    return module, optimizer


def train(rank, module, optimizer, steps=range(_STEPS)):
    for step in steps:
        optimizer.zero_grad()
        backward(module, rank, step)
        optimizer.step()


def assert_same_bits(ours, theirs):
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other), f"{name}: {(one - other).abs().max()}"


def test_steps_equal_the_unsharded_optimizer_bit_by_bit(rank, size):
    for kind in _KINDS:
        module = model()
        optimizer = spread(module, kind)
        train(rank, module, optimizer)
        plain, _ = train_plain(rank, size, kind)
        assert_same_bits(module, plain)


def test_the_state_of_a_parameter_is_on_one_rank(rank, size):
    module = model()
    optimizer = spread(module, "adam")
    train(rank, module, optimizer)
    held = [None] * size
    numels = {id(one): one.numel() for one in module.parameters()}
    dist.all_gather_object(held, sum(numels[id(parameter)] for parameter in optimizer.state))
    unused = sum(one.numel() for one in module.unused.parameters())
    assert sum(held) == sum(numels.values()) - unused
    largest = max(numels.values())
    assert max(held) <= max(largest, sum(numels.values()) / size * 4 / 3), (held, optimizer.reasons)


def test_gradients_that_are_already_reduced_are_accepted(rank, size):
    module = model()
    optimizer = spread(module, "adamw")
    for step in range(_STEPS):
        optimizer.zero_grad()
        backward(module, rank, step)
        average_in_order(module, size)
        optimizer.take_reduced_gradients()
        optimizer.step()
    assert_same_bits(module, train_plain(rank, size, "adamw")[0])


def test_a_gradient_present_on_one_rank_only_counts(rank, size):
    layer = nn.Linear(2, 2, bias=False)
    nn.init.ones_(layer.weight)
    optimizer = ShardedStateOptimizer(torch.optim.SGD(layer.parameters(), lr=1.0), lambda _: dist.group.WORLD)
    if rank == size - 1:
        layer.weight.grad = torch.full((2, 2), float(size))
    optimizer.step()
    assert torch.equal(layer.weight, torch.zeros(2, 2))


def test_clipping_between_reduction_and_step(rank, size):
    module, plain = model(), model()
    optimizer, plain_optimizer = spread(module, "sgd"), optimizer_of(plain, "sgd")
    for step in range(_STEPS):
        optimizer.zero_grad()
        backward(module, rank, step)
        optimizer.reduce_gradients()
        owned = optimizer.owned_gradients()
        square = torch.tensor([sum(float(one.square().sum()) for one in owned)], dtype=torch.float64)
        dist.all_reduce(square)
        shrink = min(1.0, 0.1 / (float(square.sqrt()) + 1e-6))
        for one in owned:
            one.mul_(shrink)
        optimizer.step()
        plain_optimizer.zero_grad()
        backward(plain, rank, step)
        average_in_order(plain, size)
        nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        plain_optimizer.step()
    torch.testing.assert_close(list(module.parameters()), list(plain.parameters()))


def test_masters_in_32_bits(rank, size):
    module = model().to(torch.bfloat16)
    first = [one.detach().float() for one in module.parameters()]
    optimizer = spread(module, "sgd", with_masters=True)
    masters = [nn.Parameter(one.clone()) for one in first]
    other = model().to(torch.bfloat16)
    plain = torch.optim.SGD(
        [{"params": masters[::2]}, {"params": masters[1::2], "weight_decay": 0.2}], lr=0.1, momentum=0.9
    )
    for step in range(_STEPS):
        optimizer.zero_grad()
        backward(module, rank, step)
        optimizer.step()
        other.zero_grad()
        backward(other, rank, step)
        average_in_order(other, size)
        for master, one in zip(masters, other.parameters(), strict=True):
            master.grad = None if one.grad is None else one.grad.float()
        plain.step()
        for master, one in zip(masters, other.parameters(), strict=True):
            one.data.copy_(master)
    assert_same_bits(module, other)
    states = optimizer.full_state_dict()
    for number, master in enumerate([*masters[::2], *masters[1::2]]):  # full states list parameters by group
        assert torch.equal(states["masters"][number], master)
    again = spread(module, "sgd", with_masters=True)
    again.load_full_state_dict(states)
    assert torch.equal(
        torch.cat([one.flatten() for group in again.param_groups for one in group["params"]] or [torch.ones(1)]),
        torch.cat([one.flatten() for group in optimizer.param_groups for one in group["params"]] or [torch.ones(1)]),
    )


def test_parameters_of_different_groups_of_ranks(rank, size):
    """As with tensor parallelism: some parameters are equal on all ranks, others on every second rank."""
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    own = pairs[rank % 2]
    torch.manual_seed(7)
    common, cut = nn.Linear(6, 6), nn.Linear(6, 4)
    with torch.no_grad():
        cut.weight.add_(rank % 2)
    plain_common, plain_cut = copy.deepcopy(common), copy.deepcopy(cut)
    cut_ids = {id(one) for one in cut.parameters()}
    optimizer = ShardedStateOptimizer(
        torch.optim.AdamW([*common.parameters(), *cut.parameters()], lr=0.1),
        lambda one: own if id(one) in cut_ids else dist.group.WORLD,
    )
    plain = torch.optim.AdamW([*plain_common.parameters(), *plain_cut.parameters()], lr=0.1)
    for step in range(_STEPS):
        for first, second, stepper in ((common, cut, optimizer), (plain_common, plain_cut, plain)):
            stepper.zero_grad()
            features = torch.randn(3, 6, generator=torch.Generator().manual_seed(10 * step + rank))
            second(first(features)).square().mean().backward()
        for one in plain_common.parameters():
            dist.all_reduce(one.grad)
            one.grad /= size
        for one in plain_cut.parameters():
            dist.all_reduce(one.grad, group=own)
            one.grad /= 2
        optimizer.step()
        plain.step()
    torch.testing.assert_close(list(common.parameters()), list(plain_common.parameters()))
    torch.testing.assert_close(list(cut.parameters()), list(plain_cut.parameters()))
    assert set(optimizer.full_state_dict()["state"]) == {0, 1, 2, 3}


def test_local_states_resume(rank, size):
    module = model()
    optimizer = spread(module, "adam")
    train(rank, module, optimizer, range(2))
    weights, saved = copy.deepcopy(module.state_dict()), copy.deepcopy(optimizer.local_state_dict())
    train(rank, module, optimizer, range(2, 4))
    other = model()
    other.load_state_dict(weights)
    other_optimizer = spread(other, "adam")
    other_optimizer.load_local_state_dict(saved)
    train(rank, other, other_optimizer, range(2, 4))
    assert_same_bits(other, module)


def test_a_local_state_of_another_rank_is_refused(rank, size):
    optimizer = spread(model(), "adam")
    everyone = [None] * size
    dist.all_gather_object(everyone, optimizer.local_state_dict())
    failure = ""
    try:
        optimizer.load_local_state_dict(everyone[(rank + 1) % size])
    except ValueError as error:
        failure = str(error)
    assert f"has ranks [({(rank + 1) % size}, {size})]; expected [({rank}, {size})]" in failure, failure


def test_full_states_equal_those_of_the_unsharded_optimizer(rank, size):
    module = model()
    optimizer = spread(module, "adam")
    train(rank, module, optimizer, range(2))
    plain, plain_optimizer = train_plain(rank, size, "adam", range(2))
    found, wanted = optimizer.full_state_dict(), plain_optimizer.state_dict()
    assert found["param_groups"] == wanted["param_groups"]
    assert set(found["state"]) == set(wanted["state"])
    for number, by_key in wanted["state"].items():
        for key, value in by_key.items():
            assert torch.equal(found["state"][number][key], value), (number, key)
    at_first = optimizer.full_state_dict(to_rank0=True)
    assert (set(at_first["state"]) == set(wanted["state"])) == (rank == 0 or size == 1)
    other = model()
    other.load_state_dict(plain.state_dict())
    for state in (wanted, found):  # loaded from both full states
        again = copy.deepcopy(other)
        again_optimizer = spread(again, "adam")
        again_optimizer.load_full_state_dict(copy.deepcopy(state))
        train(rank, again, again_optimizer, range(2, 4))
        theirs = copy.deepcopy(plain)
        stepper = optimizer_of(theirs, "adam")
        stepper.load_state_dict(copy.deepcopy(wanted))
        train_plain(rank, size, "adam", range(2, 4), theirs, stepper)
        assert_same_bits(again, theirs)


def test_full_states_with_other_groups_are_refused(rank, size):
    optimizer = spread(model(), "adam")
    other = torch.optim.Adam(model().parameters())
    failure = ""
    try:
        optimizer.load_full_state_dict(other.state_dict())
    except ValueError as error:
        failure = str(error)
    assert "has groups of [9] parameters; expected [5, 4]" in failure, failure


def test_optimizers_with_state_are_refused(rank, size):
    module = model()
    stepped = optimizer_of(module, "adam")
    backward(module, rank, 0)
    stepped.step()
    failure = ""
    try:
        ShardedStateOptimizer(stepped, lambda _: dist.group.WORLD)
    except ValueError as error:
        failure = str(error)
    assert "has state already" in failure, failure


def test_schedulers_reach_the_groups(rank, size):
    module = model()
    optimizer = spread(module, "sgd")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1, gamma=0.5)
    train(rank, module, optimizer, range(1))
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.05]


def test_sums_of_16_bit_gradients_do_not_overflow(rank, size):
    parameters = [torch.nn.Parameter(torch.zeros(4, dtype=torch.float16)) for _ in range(3)]
    optimizer = ShardedStateOptimizer(
        torch.optim.SGD(parameters, lr=1.0), lambda _: dist.group.WORLD, with_masters=True
    )
    for one in parameters:
        one.grad = torch.full((4,), 60000.0, dtype=torch.float16)
    optimizer.reduce_gradients()
    for grad in optimizer.owned_gradients():
        assert torch.all(grad == 60000.0)
