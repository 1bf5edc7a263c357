"""Experts spread over two ranks: all kinds of wrap policies, mixed tokens, added losses, and refusals."""

import copy
import functools

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy
from tsm_experts_program import (
    EXPERTS,
    INNER,
    LAYOUTS,
    NONE,
    WIDTH,
    DecoderLayer,
    FusedBlock,
    FusedExperts,
    ListedBlock,
    ListedExpert,
    Model,
    batches,
    check_by_hand,
    check_fsdp,
    close,
    loss_of,
    own_of,
    wrapping,
)

from clary.train.parallel.fsdp.experts.configuration import MoEConfig
from clary.train.parallel.fsdp.experts.groups import make_expert_groups
from clary.train.parallel.fsdp.experts.layer import MoELayer
from clary.train.parallel.fsdp.experts.spreading import spread_experts


def test_tokens_shuffled_over_ranks_return_to_their_positions(rank, size):
    for config in (
        MoEConfig(moe_load_balancing="none", global_token_shuffle=True),
        MoEConfig(moe_load_balancing="none", global_token_shuffle=True, moe_all_to_all_dispatcher=False),
    ):
        check_by_hand(rank, size, degree=size, layout="fused", config=config)


def test_fsdp_with_policies_of_all_kinds(rank, size):
    for policy in (
        functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={DecoderLayer}),
        functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={DecoderLayer, MoELayer}),
        ModuleWrapPolicy({DecoderLayer, MoELayer, FusedExperts}),
        lambda module, recurse, nonwrapped_numel: recurse or isinstance(module, DecoderLayer),
        lambda module, recurse, nonwrapped_numel: False,
    ):
        check_fsdp(rank, size, degree=2, policy=policy)


def test_fsdp_by_hand_without_a_policy(rank, size):
    alone = Model("fused")
    groups = make_expert_groups(2, 0)
    model = spread_experts(copy.deepcopy(alone), groups.ep, NONE)
    with wrapping(groups):
        for at, layer in enumerate(model.layers):
            model.layers[at] = FSDP(layer, use_orig_params=True, device_id=torch.device("cpu"))
        model = FSDP(model, use_orig_params=True, device_id=torch.device("cpu"))
    units = [type(one.module).__name__ for one in model.modules() if isinstance(one, FSDP)]
    assert units == ["Model", "DecoderLayer", "FusedExperts", "DecoderLayer", "FusedExperts"], units
    loss = loss_of(model, batches(size)[0][rank])
    close(loss.detach(), loss_of(alone, batches(size)[0][rank]).detach(), "loss")


def test_checkpointed_layers_route_tokens_alike_when_recomputed(rank, size):
    from torch.utils.checkpoint import checkpoint

    groups = make_expert_groups(size, 0)
    config = MoEConfig(moe_load_balancing="balanced", global_token_shuffle=True)
    model = spread_experts(Model("fused"), groups.ep, config)
    tokens = batches(size)[0][rank]
    gradients = []
    for reentrant in (None, False, True):
        model.zero_grad()
        hidden = model.embedding(tokens)
        for layer in model.layers:
            hidden = layer(hidden) if reentrant is None else checkpoint(layer, hidden, use_reentrant=reentrant)
        hidden.square().mean().backward()
        gradients.append({name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None})
    for other in gradients[1:]:
        assert other.keys() == gradients[0].keys()
        for name, value in other.items():
            close(value, gradients[0][name], name)


def test_tokens_are_balanced_only_in_training(rank, size):
    alone = Model("fused").eval()
    model = spread_experts(copy.deepcopy(alone), make_expert_groups(size, 0).ep, MoEConfig())
    tokens = batches(size)[0][rank]
    close(model(tokens), alone(tokens), "logits in evaluation")
    model.train()
    assert not torch.allclose(model(tokens), alone(tokens), atol=1e-3)


def test_added_losses_reach_the_router_as_if_added_to_the_loss(rank, size):
    from clary.train.parallel.fsdp.experts.routing import even_share_loss, z_loss

    groups = make_expert_groups(size, 0)
    config = MoEConfig(moe_load_balancing="aux_loss", moe_aux_loss_coeff=0.3, moe_z_loss_coeff=0.2)
    alone = FusedBlock()
    block = spread_experts(nn.Sequential(copy.deepcopy(alone)), groups.ep, config)[0]
    block.added_loss_scale = 0.5
    hidden = torch.randn(2, 3 + rank, WIDTH)
    block(hidden).square().mean().mul(0.5).backward()
    rows = hidden.flatten(0, 1)
    logits, _, experts = alone.gate(rows)
    loss = alone(hidden).square().mean() + 0.3 * even_share_loss(logits, experts) + 0.2 * z_loss(logits)
    loss.mul(0.5).backward()
    close(block.gate.weight.grad, alone.gate.weight.grad, "gradient of the router")


def test_from_first_rank_sends_experts_of_rank_0_to_all_ranks(rank, size):
    for layout in LAYOUTS:
        torch.manual_seed(5)
        expected = Model(layout)
        torch.manual_seed(rank)
        with torch.device("cpu" if rank == 0 else "meta"):
            model = Model(layout)
        if rank == 0:
            model.load_state_dict(expected.state_dict())
        groups = make_expert_groups(size, 0)
        spread_experts(model, groups.ep, NONE, from_first_rank=True)
        whole = expected.state_dict()
        for name, value in model.state_dict().items():
            if "experts" in name:
                assert not value.is_meta, name
                assert torch.equal(value, own_of(whole[name], name, value, groups)), name


def test_models_that_cannot_be_spread_are_refused(rank, size):
    group = make_expert_groups(size, 0).ep
    odd = FusedBlock()
    odd.shared = nn.Linear(2, 2)
    other = FusedBlock()
    other.experts.gate_up_proj = nn.Parameter(torch.zeros(EXPERTS, WIDTH, 2 * INNER))
    biased = FusedBlock()
    biased.gate.correction = nn.Parameter(torch.zeros(EXPERTS))
    unscaled = FusedBlock()
    unscaled.gate.norm_topk_prob = False
    three = ListedBlock()
    three.experts = nn.ModuleList(ListedExpert() for _ in range(3))
    for model, words in (
        (nn.Linear(2, 2), "no layer of experts"),
        (odd, "shared"),
        (other, "gate_up_proj [E, 2 I, D]"),
        (three, "3 experts"),
        (biased, "correction, weight; expected"),
        (unscaled, "norm_topk_prob"),
    ):
        told = None
        try:
            spread_experts(nn.Sequential(model), group, NONE)
        except ValueError as error:
            told = str(error)
        assert told is not None, words
        assert words in told, told
