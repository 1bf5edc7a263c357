"""Expert and context parallelism through the public API, from `tsm.init` to full states, compared with one process."""

import copy

import torch
import torch.distributed as dist
import tsm_context_program as sequences
import tsm_experts_program as experts
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from clary.train.parallel.fsdp.delayed import DelayedParamIniter
from clary.train.parallel.fsdp.experts.layer import ListedExperts
from clary.train.parallel.fsdp.session import init
from clary.train.parallel.fsdp.state import state
from clary.train.parallel.fsdp.training import clip_grad_norm_, transform

MAX_NORM = 0.3  # below the norms of gradients: every step clips


def wrapped(model, layer):
    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({layer}), use_orig_params=True, device_id=torch.device("cpu"))


def full_state(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
        return model.state_dict()


def check_state(model, alone):
    found, expected = full_state(model), alone.state_dict()
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=3e-5, atol=3e-5)


def check_experts(rank, size, layout, degrees):
    state.reset()
    init(degrees)
    alone = experts.Model(layout)
    model = transform(copy.deepcopy(alone), config={"moe_load_balancing": "none"})
    assert sum(one.numel() for one in model.parameters()) < sum(one.numel() for one in alone.parameters())
    model = wrapped(model, experts.DecoderLayer)
    optimizer, whole_optimizer = experts.optimizer_of(model), experts.optimizer_of(alone)
    for step in experts.batches(size):
        optimizer.zero_grad()
        whole_optimizer.zero_grad()
        parts = torch.stack([experts.loss_of(alone, tokens) for tokens in step])
        parts.mean().backward()
        expected = nn.utils.clip_grad_norm_(alone.parameters(), MAX_NORM)
        whole_optimizer.step()
        loss = experts.loss_of(model, step[rank])
        loss.backward()
        norm = clip_grad_norm_(model, MAX_NORM)
        optimizer.step()
        assert expected > MAX_NORM
        torch.testing.assert_close(loss, parts[rank], rtol=3e-5, atol=3e-5)
        torch.testing.assert_close(norm, expected, rtol=3e-5, atol=3e-5)
    check_state(model, alone)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
        model.load_state_dict({name: value + 1 for name, value in alone.state_dict().items()})
    with torch.no_grad():
        for one in alone.parameters():
            one.add_(1)
    check_state(model, alone)


def test_experts_train_as_in_one_process(rank, size):
    for layout in experts.LAYOUTS:
        check_experts(rank, size, layout, {"expert_parallel_degree": 2})


def test_experts_in_hybrid_shards(rank, size):
    check_experts(rank, size, "fused", {"expert_parallel_degree": 2, "hybrid_shard_degree": size})
    check_experts(rank, size, "listed", {"expert_parallel_degree": 2, "hybrid_shard_degree": 2})


def test_listed_experts_on_the_meta_device_get_different_values(rank, size):
    state.reset()
    init({"expert_parallel_degree": 2})
    with torch.device("meta"):
        model = experts.Model("listed")
    model = transform(model)
    torch.manual_seed(3)
    initer = DelayedParamIniter(
        model, lambda one: [nn.init.normal_(value) for value in one.parameters(recurse=False) if value is not None]
    )
    for module in model.modules():
        initer.get_param_init_fn()(module)
    found = [module for module in model.modules() if isinstance(module, ListedExperts)]
    assert len(found) == 2
    values = torch.cat([one.detach().flatten() for module in found for one in module.parameters()])
    everyone = [torch.empty_like(values) for _ in range(size)]
    dist.all_gather(everyone, values)
    assert not torch.isclose(everyone[0], everyone[1]).any()
    head = model.head.weight.detach().contiguous()
    everyone = [torch.empty_like(head) for _ in range(size)]
    dist.all_gather(everyone, head)
    assert torch.equal(everyone[0], everyone[1])


def check_sequences(rank, size, degrees, communication):
    state.reset()
    init(degrees)
    degree = degrees["context_parallel_degree"]
    alone = sequences.LlamaForCausalLM()
    model = wrapped(transform(copy.deepcopy(alone), cp_comm_type=communication), sequences.LlamaDecoderLayer)
    expected = sequences.train_alone(alone, size // degree)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    for at, step in enumerate(sequences.batches(size // degree)):
        tokens, labels = sequences.part_of_batch(step[rank // degree], state.cp_rank, degree)
        optimizer.zero_grad()
        loss = model(tokens, labels=labels)["loss"]
        loss.backward()
        clip_grad_norm_(model, 1e9)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=state.cp_process_group)
        assert abs(mean.item() / degree - expected[at][rank // degree]) < 3e-5, (at, mean / degree, expected[at])
    check_state(model, alone)


def test_sequences_train_as_in_one_process(rank, size):
    for communication in ("p2p", "all_gather"):
        check_sequences(rank, size, {"context_parallel_degree": 2}, communication)


def test_sequences_in_hybrid_shards(rank, size):
    check_sequences(rank, size, {"context_parallel_degree": 2, "hybrid_shard_degree": 2}, "p2p")
