"""Experts spread over ranks, compared with one process that has all experts and the batches of all ranks."""

import contextlib
import copy
import inspect

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from clary.train.parallel.fsdp.experts.configuration import MoEConfig
from clary.train.parallel.fsdp.experts.groups import make_expert_groups
from clary.train.parallel.fsdp.experts.layer import MoELayer
from clary.train.parallel.fsdp.experts.spreading import spread_experts
from clary.train.parallel.fsdp.experts.states import add_experts_of_others, drop_experts_of_others
from clary.train.parallel.fsdp.experts.wrapping import expert_wrapping

WIDTH, INNER, EXPERTS, TOP_K, VOCABULARY, STEPS = 8, 6, 4, 2, 20, 3
LAYOUTS = ("fused", "listed")
NONE = MoEConfig(moe_load_balancing="none")


class FusedRouter(nn.Module):
    """Selects experts itself, as in transformers 5."""

    def __init__(self):
        super().__init__()
        self.top_k = TOP_K
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH))

    def forward(self, rows):
        logits = nn.functional.linear(rows, self.weight)
        best, experts = logits.float().softmax(-1).topk(self.top_k, dim=-1)
        return logits, best / best.sum(-1, keepdim=True), experts


class FusedExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, WIDTH) / 3)
        self.down_proj = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) / 3)
        self.act_fn = nn.SiLU()

    def forward(self, rows, experts, weights):
        total = torch.zeros_like(rows)
        for number in range(EXPERTS):
            token, choice = torch.where(experts == number)
            gate, up = nn.functional.linear(rows[token], self.gate_up_proj[number]).chunk(2, dim=-1)
            out = nn.functional.linear(self.act_fn(gate) * up, self.down_proj[number])
            total = total.index_add(0, token, out * weights[token, choice, None])
        return total


class FusedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = FusedRouter()
        self.experts = FusedExperts()

    def forward(self, hidden):
        rows = hidden.reshape(-1, hidden.shape[-1])
        _, weights, experts = self.gate(rows)
        return self.experts(rows, experts, weights).view(hidden.shape)


class ListedExpert(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(WIDTH, INNER, bias=False)
        self.w2 = nn.Linear(INNER, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, INNER, bias=False)

    def forward(self, rows):
        return self.w2(nn.functional.silu(self.w1(rows)) * self.w3(rows))


class ListedBlock(nn.Module):
    """Holds its experts in a list, as in transformers 4."""

    def __init__(self):
        super().__init__()
        self.top_k = TOP_K
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(ListedExpert() for _ in range(EXPERTS))

    def forward(self, hidden):
        rows = hidden.reshape(-1, hidden.shape[-1])
        logits = self.gate(rows)
        best, experts = logits.float().softmax(-1).topk(self.top_k, dim=-1)
        best = best / best.sum(-1, keepdim=True)
        total = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            token, choice = torch.where(experts == number)
            total = total.index_add(0, token, expert(rows[token]) * best[token, choice, None])
        return total.view(hidden.shape), logits


class DecoderLayer(nn.Module):
    def __init__(self, layout):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.mlp = FusedBlock() if layout == "fused" else ListedBlock()

    def forward(self, hidden):
        hidden = hidden + self.mix(hidden.cumsum(1) / 4)
        mixed = self.mlp(self.norm(hidden))
        return hidden + (mixed[0] if isinstance(mixed, tuple) else mixed)


class Model(nn.Module):
    def __init__(self, layout):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([DecoderLayer(layout), DecoderLayer(layout)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def batches(size):
    """Return the tokens of each rank in each step; ranks have different numbers of tokens."""
    generator = torch.Generator().manual_seed(7)
    return [
        [torch.randint(0, VOCABULARY, (2, 4 + rank), generator=generator) for rank in range(size)] for _ in range(STEPS)
    ]


def loss_of(model, tokens):
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def optimizer_of(model):
    # with this eps, rounding errors of small gradients stay small in steps
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)


def train_alone(model, size):
    optimizer, losses = optimizer_of(model), []
    for step in batches(size):
        optimizer.zero_grad()
        parts = torch.stack([loss_of(model, tokens) for tokens in step])
        parts.mean().backward()
        optimizer.step()
        losses.append(parts.tolist())
    return losses


def close(found, expected, words):
    torch.testing.assert_close(found, expected, rtol=3e-5, atol=3e-5, msg=lambda text: f"{words}: {text}")


def own_of(whole, name, own, groups):
    """Return this rank's part of a parameter of the model in one process."""
    if whole.shape == own.shape:
        return whole
    return whole.chunk(groups.ep.size)[groups.ep.rank]


@contextlib.contextmanager
def wrapping(groups):
    """Replace FSDP's constructor as `tsm.init` does."""
    original = FSDP.__init__
    signature = inspect.signature(original)

    def construct(self, *args, **kwargs):
        arguments = signature.bind(self, *args, **kwargs).arguments
        is_of_experts = expert_wrapping(arguments, groups)
        if not is_of_experts and groups.shard_degree > 1:
            arguments["sharding_strategy"] = ShardingStrategy.HYBRID_SHARD
            arguments["process_group"] = blocks[groups.shard_degree]
        original(**arguments)

    size, rank = dist.get_world_size(), dist.get_rank()
    degree = groups.shard_degree
    blocks = {}
    if degree > 1:
        shards = [dist.new_group(list(range(first, first + degree))) for first in range(0, size, degree)]
        replicas = [dist.new_group(list(range(first, size, degree))) for first in range(degree)]
        blocks[degree] = (shards[rank // degree], replicas[rank % degree])
    FSDP.__init__ = construct
    try:
        yield
    finally:
        FSDP.__init__ = original


def check_fsdp(rank, size, *, degree, layout="fused", shard_degree=0, config=NONE, policy=None, **options):
    alone = Model(layout)
    groups = make_expert_groups(degree, shard_degree)
    model = spread_experts(copy.deepcopy(alone), groups.ep, config)
    options = {"use_orig_params": True, "device_id": torch.device("cpu"), **options}
    with wrapping(groups):
        if policy is None:
            policy = ModuleWrapPolicy({DecoderLayer})
        model = FSDP(model, auto_wrap_policy=policy, **options)
    units = [one for one in model.modules() if isinstance(one, FSDP)]
    of_experts = [one for one in units if one.process_group is not units[0].process_group]
    assert len(of_experts) == 2, [type(one.module) for one in units]
    assert {one.process_group.size() for one in of_experts} <= {groups.num_shards, size // degree}
    expected = train_alone(alone, size)
    optimizer = optimizer_of(model)
    for at, step in enumerate(batches(size)):
        optimizer.zero_grad()
        loss = loss_of(model, step[rank])
        loss.backward()
        optimizer.step()
        assert abs(loss.item() - expected[at][rank]) < 3e-5, (at, loss.item(), expected[at][rank])
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
        found = model.state_dict()
    whole = alone.state_dict()
    assert found.keys() <= whole.keys(), found.keys() - whole.keys()
    num_experts = sum("experts" in name for name in found)
    assert num_experts == (4 if layout == "fused" else 2 * 3 * EXPERTS // degree)
    for name, value in found.items():
        close(value, own_of(whole[name], name, value, groups), name)


def check_by_hand(rank, size, *, degree, layout, config=NONE):
    """Compare without FSDP: gradients are averaged over the ranks that hold the same parameters."""
    alone = Model(layout)
    groups = make_expert_groups(degree, 0)
    model = spread_experts(copy.deepcopy(alone), groups.ep, config)
    assert all(isinstance(layer.mlp, MoELayer) for layer in model.layers)
    for step in batches(size):
        alone.zero_grad()
        model.zero_grad()
        parts = torch.stack([loss_of(alone, tokens) for tokens in step])
        parts.mean().backward()
        loss = loss_of(model, step[rank])
        loss.backward()
        close(loss.detach(), parts[rank].detach(), "loss")
        whole = dict(alone.named_parameters())
        for name, parameter in model.named_parameters():
            group = groups.same if "experts" in name else dist.group.WORLD
            dist.all_reduce(parameter.grad, group=group)
            close(
                parameter.grad / group.size(),
                own_of(whole[name].grad, name, parameter, groups),
                f"gradient of {name}",
            )


def test_gradients_are_those_of_one_process(rank, size):
    for layout in LAYOUTS:
        for degree in sorted({2, size}):
            check_by_hand(rank, size, degree=degree, layout=layout)


def test_gathered_experts_have_the_gradients_of_one_process(rank, size):
    config = MoEConfig(moe_load_balancing="none", moe_all_to_all_dispatcher=False)
    for layout in LAYOUTS:
        check_by_hand(rank, size, degree=size, layout=layout, config=config)


def test_fsdp_cuts_experts_over_their_own_ranks(rank, size):
    for layout in LAYOUTS:
        check_fsdp(rank, size, degree=2, layout=layout)


def test_fsdp_with_every_expert_on_one_rank(rank, size):
    check_fsdp(rank, size, degree=size)


def test_fsdp_with_flat_parameters(rank, size):
    check_fsdp(rank, size, degree=2, use_orig_params=False)


def test_fsdp_with_gathering(rank, size):
    check_fsdp(rank, size, degree=2, config=MoEConfig(moe_load_balancing="none", moe_all_to_all_dispatcher=False))


def test_fsdp_by_hybrid_degrees(rank, size):
    # every rank has a whole shard of experts: FSDP cuts them no further
    check_fsdp(rank, size, degree=2, shard_degree=2)
    check_fsdp(rank, size, degree=2, shard_degree=size)
    check_fsdp(rank, size, degree=2, shard_degree=1)
    if size > 2:
        check_fsdp(rank, size, degree=size, shard_degree=2)


def test_full_states_of_listed_experts_have_all_of_them(rank, size):
    alone = Model("listed")
    groups = make_expert_groups(2, 0)
    model = spread_experts(copy.deepcopy(alone), groups.ep, NONE)
    with wrapping(groups):
        policy = ModuleWrapPolicy({DecoderLayer})
        model = FSDP(model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu"))
    expected = alone.state_dict()
    for is_rank0_only in (False, True):
        config = FullStateDictConfig(rank0_only=is_rank0_only)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
            found = add_experts_of_others(model, model.state_dict())
            if not is_rank0_only:
                other = {name: value + 1 for name, value in expected.items()}
                model.load_state_dict(drop_experts_of_others(model, other))
                again = add_experts_of_others(model, model.state_dict())
                model.load_state_dict(drop_experts_of_others(model, expected))
        if rank == 0 or not is_rank0_only:
            assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
            for name, value in expected.items():
                assert torch.equal(found[name], value), name
                assert torch.equal(again[name], value + 1), name


def test_optimizer_states_are_those_of_one_process(rank, size):
    alone = Model("fused")
    groups = make_expert_groups(2, 0)
    model = spread_experts(copy.deepcopy(alone), groups.ep, NONE)
    with wrapping(groups):
        policy = ModuleWrapPolicy({DecoderLayer})
        model = FSDP(model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu"))
    optimizer, whole_optimizer = optimizer_of(model), optimizer_of(alone)
    step = batches(size)[0]
    torch.stack([loss_of(alone, tokens) for tokens in step]).mean().backward()
    whole_optimizer.step()
    loss_of(model, step[rank]).backward()
    optimizer.step()
    names = dict(alone.named_parameters())
    config = (
        FullStateDictConfig(),
        FullOptimStateDictConfig(offload_to_cpu=False),
    )  # on CPUs torch's moments share memory
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, *config):
        found = FSDP.optim_state_dict(model, optimizer)["state"]
    assert found.keys() == names.keys()
    for name, parameter in names.items():
        for key in ("exp_avg", "exp_avg_sq"):
            expected = whole_optimizer.state[parameter][key]
            close(found[name][key], own_of(expected, name, found[name][key], groups), f"{key} of {name}")


def test_experts_that_get_no_token_have_gradients_of_zero(rank, size):
    alone = FusedBlock()
    with torch.no_grad():
        alone.gate.weight.zero_()
        alone.gate.weight[:2, 0] = torch.tensor([2.0, 1.0])  # all tokens go to the experts 0 and 1
    groups = make_expert_groups(size, 0)
    for config in (NONE, MoEConfig(moe_load_balancing="none", moe_all_to_all_dispatcher=False)):
        block = spread_experts(nn.Sequential(copy.deepcopy(alone)), groups.ep, config)[0]
        # the last expert has no token
        hidden = torch.rand(0 if rank == size - 1 else 3, 2, WIDTH).add_(0.1).requires_grad_()
        other = hidden.detach().clone().requires_grad_()
        block(hidden).square().sum().backward()
        alone.zero_grad()
        alone(other).square().sum().backward()
        close(hidden.grad, other.grad, "gradient of the input")
        is_used = (block.experts.gate_up_proj.grad != 0).flatten(1).any(1).tolist()
        num_own = EXPERTS // size
        assert is_used == [number < 2 for number in range(rank * num_own, (rank + 1) * num_own)], is_used
