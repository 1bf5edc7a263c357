"""FSDP with `hybrid_shard_degree`, compared with one process that trains on the batches of all ranks."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from clary.train.parallel.fsdp.delayed import DelayedParamIniter
from clary.train.parallel.fsdp.session import init
from clary.train.parallel.fsdp.state import state
from clary.train.parallel.fsdp.training import clip_grad_norm_, transform

_WIDTH = 12
_STEPS = 3
_MAX_NORM = 0.05  # below the norms that occur: every step clips


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.up = nn.Linear(_WIDTH, 17)  # divisible by no degree
        self.down = nn.Linear(17, _WIDTH)

    def forward(self, hidden):
        return hidden + self.down(torch.tanh(self.up(self.norm(hidden))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, _WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(_WIDTH, 30, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, tokens):
        hidden = self.embedding(tokens) * self.scale
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)

    def reset_parameters(self):
        pass

    def reset_buffers(self):
        self.scale.fill_(0.5)


def refused(call, kind, words):
    told = None
    try:
        call()
    except kind as error:
        told = str(error)
    assert told is not None, f"nothing was raised; expected {words!r}"
    assert words in told, told


def wrapped(model, **options):
    options = {"use_orig_params": True, "device_id": torch.device("cpu"), **options}
    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), **options)


def batches(size):
    """Return tokens [steps, rank, batch, sequence]."""
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 30, (_STEPS, size, 3, 5), generator=generator)


def loss_of(model, tokens):
    logits = model(tokens)
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def train_alone(model, size):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for tokens in batches(size):
        optimizer.zero_grad()
        parts = [loss_of(model, part) for part in tokens]
        torch.stack(parts).mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), _MAX_NORM)
        optimizer.step()
        losses.append((torch.stack(parts).tolist(), norm.item()))
    return losses


def train_sharded(model, rank, size):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for tokens in batches(size):
        optimizer.zero_grad()
        loss = loss_of(model, tokens[rank])
        loss.backward()
        norm = clip_grad_norm_(model, _MAX_NORM)
        optimizer.step()
        losses.append((loss.item(), norm.item()))
    return losses


def full_state(model, **options):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(**options)):
        return model.state_dict()


def check_parity(degree, rank, size, **options):
    state.reset()
    init({"hybrid_shard_degree": degree})
    alone = Model()
    model = wrapped(transform(copy.deepcopy(alone)), **options)
    expected = train_alone(alone, size)
    found = train_sharded(model, rank, size)
    for (losses, norm), (loss, own_norm) in zip(expected, found, strict=True):
        assert abs(losses[rank] - loss) < 1e-5, (expected, found)
        assert abs(norm - own_norm) < 1e-4, (expected, found)
    whole = full_state(model, translate_on_save=True)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(
            whole[name], value, rtol=1e-5, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    strategy, num_ranks = model.sharding_strategy, model.process_group.size()
    state.reset()
    return strategy, num_ranks


def test_degree_0_leaves_the_requested_sharding_of_fsdp(rank, size):
    strategy, num_ranks = check_parity(0, rank, size, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    assert (strategy, num_ranks) == (ShardingStrategy.SHARD_GRAD_OP, size)


def test_degree_1_cuts_nothing(rank, size):
    strategy, num_ranks = check_parity(1, rank, size, sharding_strategy=ShardingStrategy.FULL_SHARD)
    assert (strategy, num_ranks) == (ShardingStrategy.NO_SHARD, size)


def test_degree_2_cuts_over_pairs(rank, size):
    strategy, num_ranks = check_parity(2, rank, size, sharding_strategy=ShardingStrategy.FULL_SHARD)
    assert (strategy, num_ranks) == (ShardingStrategy.HYBRID_SHARD, 2)


def test_degree_2_keeps_zero2_if_requested(rank, size):
    strategy, num_ranks = check_parity(2, rank, size, sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2)
    assert (strategy, num_ranks) == (ShardingStrategy._HYBRID_SHARD_ZERO2, 2)


def test_degree_of_all_ranks_cuts_over_all(rank, size):
    strategy, num_ranks = check_parity(size, rank, size)
    assert (strategy, num_ranks) == (ShardingStrategy.HYBRID_SHARD, size)


def test_flat_parameters_train_alike(rank, size):
    check_parity(2, rank, size, use_orig_params=False)


def test_groups_and_ranks_are_those_of_the_degree(rank, size):
    state.reset()
    state.hybrid_shard_degree = 2  # scripts assign it in this way
    init()
    assert state.hybrid_shard_degree == 2
    assert (state.rank, state.world_size, state.tp_size, state.tp_rank) == (rank, size, 1, 0)
    replicas = dist.get_process_group_ranks(state.rep_rank_process_group)
    assert replicas in state.ranker.get_rep_groups()
    assert rank in replicas
    assert replicas.index(rank) == state.ranker.get_rep_rank(rank)
    assert state.tp_process_group is None
    init()
    init({"hybrid_shard_degree": 2})
    refused(lambda: init({"hybrid_shard_degree": 1}), RuntimeError, "was called with")
    state.reset()
    assert state.hybrid_shard_degree == 0


def test_groups_of_the_scripts_own_are_refused_with_a_degree(rank, size):
    state.reset()
    init({"hybrid_shard_degree": 2})
    refused(lambda: wrapped(Model(), process_group=dist.group.WORLD), ValueError, "groups are made")
    state.reset()


def test_a_model_that_cannot_be_cut_is_refused(rank, size):
    state.reset()
    init({"tensor_parallel_degree": 2})
    assert dist.get_process_group_ranks(state.tp_process_group) == [rank // 2 * 2, rank // 2 * 2 + 1]
    assert dist.get_process_group_ranks(state.shard_process_group) == [rank % 2, rank % 2 + 2]
    refused(lambda: transform(Model()), ValueError, "Model has no layer that tensor_parallel_degree can cut")
    state.reset()
    wrapped(Model())  # torch's own constructor again


def test_a_second_init_keeps_values_that_were_assigned_before_the_first(rank, size):
    state.reset()
    state.hybrid_shard_degree = 2
    init({"activation_loading_horizon": 3})
    init({"activation_loading_horizon": 3})
    refused(lambda: init({"activation_loading_horizon": 4}), RuntimeError, "was called with")
    assert state.random_seed == 12345
    state.reset()


def test_delayed_parameters_are_those_of_the_seed(rank, size):
    """Every rank initialises each unit whole from the same seed: the model equals the model of one process."""
    state.reset()
    init({"hybrid_shard_degree": 2})
    with torch.device("meta"):
        model = Model()
    initer = DelayedParamIniter(model)
    assert initer.count_num_params() == sum(one.numel() for one in Model().parameters())
    looked_over = []
    torch.manual_seed(3)
    with initer.validate_params_and_buffers_inited():
        model = wrapped(
            model,
            param_init_fn=initer.get_param_init_fn(),
            post_param_init_fn=lambda unit: (
                looked_over.append((type(unit), any(one.is_meta for one in unit.parameters()))),
                initer.get_post_param_init_fn()(unit),
            ),
        )
    assert looked_over == [(Block, False), (Block, False), (Model, False)], looked_over
    whole = full_state(model)
    alone = Model()
    torch.manual_seed(3)
    for block in alone.blocks:
        for part in block.children():
            part.reset_parameters()
    alone.embedding.reset_parameters()
    alone.scale.fill_(0.5)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(whole[name], value, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")
    loss = loss_of(model, batches(size)[0][rank])
    loss.backward()
    assert torch.isfinite(loss)
    state.reset()
