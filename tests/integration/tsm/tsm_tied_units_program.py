"""Tied weights of which FSDP wraps one owner in a unit of its own: their gradients would be lost, or they would be
trained apart."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from clary.train.parallel.fsdp.delayed import DelayedParamIniter
from clary.train.parallel.fsdp.session import init
from clary.train.parallel.fsdp.state import state

STRATEGIES = (ShardingStrategy.NO_SHARD, ShardingStrategy.FULL_SHARD)
CPU = torch.device("cpu")
NAMES = "embedding.weight and head.weight are tied and lie in different units"


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens)))


def begun():
    state.reset()
    init({})
    torch.manual_seed(4)


def assert_refused(call, words=NAMES, *given):
    told = None
    try:
        call(*given)
    except ValueError as error:
        told = str(error)
    state.reset()
    assert told is not None, "nothing was raised"
    assert words in told, told


def test_a_delayed_tie_between_two_units_is_refused(rank, size):
    for strategy, uses_own in itertools.product(STRATEGIES, (False, True)):
        begun()
        with torch.device("meta"):
            model = Tied()
        initer = DelayedParamIniter(model)

        def wrap(model=model, initer=initer, strategy=strategy, uses_own=uses_own):
            FSDP(
                model,
                auto_wrap_policy=ModuleWrapPolicy({nn.Embedding}),
                sharding_strategy=strategy,
                use_orig_params=uses_own,
                device_id=CPU,
                param_init_fn=initer.get_param_init_fn(),
                post_param_init_fn=initer.get_post_param_init_fn(),
            )

        assert_refused(wrap)


def test_a_tie_between_two_units_is_refused_with_values(rank, size):
    for strategy, uses_own in itertools.product(STRATEGIES, (False, True)):
        begun()
        model = Tied()

        def wrap(model=model, strategy=strategy, uses_own=uses_own):
            policy = ModuleWrapPolicy({nn.Embedding})
            options = {"use_orig_params": uses_own, "device_id": CPU}
            FSDP(model, auto_wrap_policy=policy, sharding_strategy=strategy, **options)

        assert_refused(wrap)


def test_a_tie_to_a_unit_that_the_script_wrapped_is_refused(rank, size):
    for strategy, uses_own in itertools.product(STRATEGIES, (False, True)):
        begun()
        options = {"sharding_strategy": strategy, "use_orig_params": uses_own, "device_id": CPU}
        model = Tied()
        model.embedding = FSDP(model.embedding, **options)
        assert_refused(lambda model=model, options=options: FSDP(model, **options), "head.weight")


class WithTieWeights(Tied):
    def tie_weights(self):
        self.head.weight = self.embedding.weight


class Outer(nn.Module):
    def __init__(self, kind=Tied):
        super().__init__()
        self.inner = kind()

    def forward(self, tokens):
        return self.inner(tokens)


def wrapped(kinds, uses_own, *, delayed, kind=Tied, frozen=False, strategy=ShardingStrategy.FULL_SHARD):
    """Wrap a model whose tied weights lie one level below it."""
    with torch.device("meta" if delayed else "cpu"):
        model = Outer(kind)
    model.inner.embedding.weight.requires_grad_(not frozen)
    options = {"use_orig_params": uses_own, "device_id": CPU, "auto_wrap_policy": ModuleWrapPolicy(kinds)}
    options["sharding_strategy"] = strategy
    if delayed:
        initer = DelayedParamIniter(model)
        options["param_init_fn"] = initer.get_param_init_fn()
        options["post_param_init_fn"] = initer.get_post_param_init_fn()
    return FSDP(model, **options)


def test_the_refusal_of_a_tie_that_the_policy_splits_names_all_owners_and_the_policy(rank, size):
    kinds_of_units = ({nn.Embedding}, {nn.Linear}, {nn.Embedding, nn.Linear})
    for kinds, uses_own, delayed in itertools.product(kinds_of_units, (False, True), (False, True)):
        for words in ("FSDP: inner.embedding.weight and inner.head.weight are tied and lie in", "auto_wrap_policy"):
            begun()
            assert_refused(lambda *given, delayed=delayed: wrapped(*given, delayed=delayed), words, kinds, uses_own)


def test_delayed_units_that_the_script_wraps_one_by_one_are_refused(rank, size):
    for uses_own in (False, True):
        begun()
        with torch.device("meta"):
            model = Tied()
        initer = DelayedParamIniter(model)
        options = {"param_init_fn": initer.get_param_init_fn(), "post_param_init_fn": initer.get_post_param_init_fn()}
        options |= {"use_orig_params": uses_own, "device_id": CPU}

        def wrap(model=model, options=options):
            model.embedding = FSDP(model.embedding, **options)
            model.head = FSDP(model.head, **options)

        assert_refused(wrap, "weight")


def test_a_model_that_ties_its_weights_itself_is_refused_by_name_too(rank, size):
    begun()
    assert_refused(
        lambda: wrapped({nn.Linear}, True, delayed=True, kind=WithTieWeights), "inner.embedding.weight and inner.head"
    )


def test_delayed_frozen_weights_may_lie_in_two_units(rank, size):
    for kind, kinds in itertools.product((Tied, WithTieWeights), ({nn.Linear}, {nn.Embedding, nn.Linear})):
        for uses_own in (False, True):
            begun()
            # torch itself cannot cut a weight in two units with `use_orig_params`
            strategy = ShardingStrategy.NO_SHARD if uses_own else ShardingStrategy.FULL_SHARD
            model = wrapped(kinds, uses_own, delayed=True, kind=kind, frozen=True, strategy=strategy)
            model(torch.arange(6)).sum().backward()
            with FSDP.summon_full_params(model):
                owners = model.module.inner.embedding, model.module.inner.head
                first, second = (getattr(one, "module", one).weight for one in owners)
                assert torch.equal(first, second)
            state.reset()


def test_a_tie_within_a_unit_trains_as_one_weight(rank, size):
    for strategy, uses_own in itertools.product(STRATEGIES, (False, True)):
        begun()
        expected, model = Tied(), Tied()
        model.load_state_dict(expected.state_dict())
        options = {"sharding_strategy": strategy, "use_orig_params": uses_own, "device_id": CPU}
        model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}), **options)
        tokens = torch.arange(6) % 5
        for one in (expected, model):
            one(tokens).square().sum().backward()
        norm = torch.stack([one.grad.norm() for one in expected.parameters()]).norm()
        assert torch.allclose(model.clip_grad_norm_(100.0), norm)
        state.reset()


def test_frozen_weights_may_lie_in_two_units(rank, size):
    begun()
    expected, model = Tied(), Tied()
    model.load_state_dict(expected.state_dict())
    model.embedding.weight.requires_grad_(False)
    options = {"sharding_strategy": ShardingStrategy.NO_SHARD, "use_orig_params": True, "device_id": CPU}
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Embedding}), **options)
    tokens = torch.arange(6)
    assert torch.equal(model(tokens), expected(tokens))
    state.reset()


def test_ignored_weights_may_lie_inside_and_outside_a_unit(rank, size):
    for uses_own in (False, True):
        begun()
        model = Tied()
        options = {"use_orig_params": uses_own, "device_id": CPU, "ignored_states": [model.embedding.weight]}
        model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}), **options)
        assert model.embedding.weight is model.head.weight
        model(torch.arange(6)).sum().backward()
        assert model.head.weight.grad is not None
        state.reset()
        dist.barrier()
