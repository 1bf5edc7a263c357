"""Mistakes of scripts of SMP v2 that once silently trained another model; run by test_tsm_silent."""

import sys
import types
from functools import partial

import torch
import torch.distributed as dist
import tsm_context_program as context
import tsm_experts_program as experts
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import offload_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from tsm_sharded_program import refused
from tsm_tensor_models import VOCABULARY, families
from tsm_tensor_program import begun, optimizer_of, wrapped

from clary.train.parallel.fsdp.context.setup import get_batch_for_cp_rank
from clary.train.parallel.fsdp.session import init
from clary.train.parallel.fsdp.state import state
from clary.train.parallel.fsdp.training import clip_grad_norm_, transform

EARLY = types.ModuleType("imports_before_init")
EARLY.clip = nn.utils.clip_grad_norm_
sys.modules[EARLY.__name__] = EARLY
OF_TORCH = EARLY.clip


def tokens_of(seed):
    return torch.randint(4, VOCABULARY - 1, (2, 8), generator=torch.Generator().manual_seed(seed))


def train(model, seed=0):
    tokens = tokens_of(seed)
    model(input_ids=tokens, labels=tokens).loss.backward()


def gradients_of(model):
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def assert_clips_alike(model):
    """Clip by our function and by FSDP's own method, and check that both give the same gradients."""
    before = gradients_of(model)
    norms, after = [], []
    for clip in (clip_grad_norm_, lambda model, limit: model.clip_grad_norm_(limit)):
        for name, one in model.named_parameters():
            if name in before:
                one.grad.copy_(before[name])
        norms.append(clip(model, 0.01))
        after.append(gradients_of(model))
    assert norms[0] == norms[1], norms
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, norms[1].item())
    assert len(set(everyone)) == 1, everyone
    assert all(torch.equal(value, after[1][name]) for name, value in after[0].items())


def test_a_method_of_fsdp_clips_by_the_norm_of_all_slices(rank, size):
    begun()
    model = wrapped(transform(families()["llama"]()))
    train(model, state.rank // 2)
    assert_clips_alike(model)
    state.reset()
    init({"expert_parallel_degree": 2})
    model = wrapped(transform(experts.Model("fused"), config={"moe_load_balancing": "none"}), experts.DecoderLayer)
    experts.loss_of(model, experts.batches(size)[0][rank]).backward()
    assert_clips_alike(model)
    state.reset()


def test_a_wrapper_around_fsdp_is_clipped_by_the_norm_of_all_shards(rank, size):
    """AWS's shared scripts put `offload_wrapper` around the outermost FSDP module."""
    for options in ({}, {"use_orig_params": False}):
        begun(tensor=1)
        model = wrapped(transform(families()["llama"]()), **options)
        train(model, rank)
        before = gradients_of(model)
        expected = model.clip_grad_norm_(0.01)
        clipped = gradients_of(model)
        for name, one in model.named_parameters():
            if name in before:
                one.grad.copy_(before[name])
        torch.testing.assert_close(clip_grad_norm_(offload_wrapper(model), 0.01), expected)
        for name, value in gradients_of(model).items():
            torch.testing.assert_close(value, clipped[name])
    state.reset()


def test_torchs_own_clipping_of_pieces_is_refused(rank, size):
    for tensor, options in ((2, {}), (1, {}), (1, {"use_orig_params": False})):
        begun(tensor=tensor)
        model = wrapped(transform(families()["llama"]()), **options)
        train(model, rank // tensor)
        for clip in (nn.utils.clip_grad_norm_, EARLY.clip):
            call = partial(clip, list(model.parameters()), 1.0)
            refused(call, RuntimeError, "call torch.sagemaker.grad_norm.clip_grad_norm_")
        clip_grad_norm_(model, 1.0)
    begun(1, tensor=1)
    model = wrapped(transform(families()["llama"]()))  # no parameter is cut
    train(model)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    state.reset()
    assert nn.utils.clip_grad_norm_ is EARLY.clip is OF_TORCH


def test_tensor_ranks_with_different_batches_are_refused(rank, size):
    begun()
    model = wrapped(transform(families()["llama"]()))
    refused(lambda: train(model, rank), ValueError, "input_ids of tensor rank 1 differs from that of tensor rank 0")
    begun()
    model = wrapped(transform(families()["llama"]()))
    train(model, rank // 2)
    train(model, rank)  # only the first pass is checked
    state.reset()


def test_whole_sequences_on_ranks_of_a_context_group_are_refused(rank, size):
    whole = tokens_of(0) % 30
    for batch in (whole, torch.ones(2, 8, dtype=torch.long)):
        state.reset()
        init({"context_parallel_degree": 2, "hybrid_shard_degree": 2})
        model = wrapped(transform(context.LlamaForCausalLM()), context.LlamaDecoderLayer)
        if batch.min() != batch.max():
            words = "the same tokens, of shape (2, 8), and each needs its part"
            refused(lambda model=model, batch=batch: model(batch), ValueError, words)
        else:
            model(batch)  # parts of a constant batch are equal
    model(get_batch_for_cp_rank(whole))
    state.reset()


def test_weights_that_differ_within_a_tensor_group_are_refused(rank, size):
    for keys, make in (
        ({"tensor_parallel_degree": 2}, families()["llama"]),
        ({"expert_parallel_degree": 2}, lambda: experts.Model("fused")),
    ):
        state.reset()
        init(keys)
        torch.manual_seed(rank % 2)
        refused(lambda make=make: transform(make()), ValueError, "after the same torch.manual_seed")
        transform(families()["llama"](), load_state_dict_from_rank0=True) if "tensor_parallel_degree" in keys else None
    state.reset()


def test_an_optimizer_made_before_its_parameters_were_replaced_is_refused(rank, size):
    begun(1)
    model = families()["llama"]()
    early = optimizer_of(model)
    model = transform(model)
    train(model)
    refused(
        early.step, RuntimeError, "parameters of AdamW no longer belong to the model, since tsm.transform has replaced"
    )
    optimizer_of(model).step()
    begun(tensor=1)
    model = transform(families()["llama"]())
    early = optimizer_of(model)
    model = wrapped(model, use_orig_params=False)
    train(model)
    refused(early.step, RuntimeError, "since FSDP has replaced them")
    optimizer_of(model).step()
    model = transform(families()["llama"]())
    early = optimizer_of(model)
    train(wrapped(model))  # with use_orig_params, FSDP keeps the parameters
    early.step()
    state.reset()


def test_slices_are_not_averaged_as_replicas(rank, size):
    begun()
    model = transform(families()["llama"]())
    refused(lambda: nn.parallel.DistributedDataParallel(model), ValueError, "would average slices of different ranks")
    group = state.rep_rank_process_group
    nn.parallel.DistributedDataParallel(model, process_group=group)
    begun()
    model = transform(families()["llama"]())
    fully_shard(model)
    refused(lambda: train(model), RuntimeError, "use torch.distributed.fsdp.FullyShardedDataParallel")
    state.reset()
    init({"expert_parallel_degree": 2})
    model = transform(experts.Model("fused"), config={"moe_load_balancing": "none"})
    fully_shard(model)
    batch = experts.batches(size)[0][rank]
    refused(lambda: experts.loss_of(model, batch), RuntimeError, "use torch.distributed.fsdp.FullyShardedDataParallel")
    state.reset()
    nn.parallel.DistributedDataParallel(nn.Linear(2, 2))


def test_weights_loaded_from_rank_0_need_sync_module_states(rank, size):
    for tensor in (1, 2):
        begun(tensor=tensor)
        torch.manual_seed(rank)
        model = transform(families()["llama"](), load_state_dict_from_rank0=True)
        if size > tensor:
            refused(lambda model=model: FSDP(model), ValueError, "sync_module_states=True")
        wrapped(model, sync_module_states=True)
    state.reset()
