"""transformers' Mixtral with its experts spread over ranks, compared with the whole model."""

import copy

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer, MixtralSparseMoeBlock
from tsm_experts_program import NONE, close, optimizer_of, wrapping

from clary.train.parallel.fsdp.context.batches import part_of_batch
from clary.train.parallel.fsdp.context.interception import COMMUNICATIONS
from clary.train.parallel.fsdp.context.spreading import spread_sequences
from clary.train.parallel.fsdp.experts.configuration import MoEConfig
from clary.train.parallel.fsdp.experts.groups import make_expert_groups
from clary.train.parallel.fsdp.experts.layer import MoELayer, OwnExperts, drawing_apart
from clary.train.parallel.fsdp.experts.spreading import spread_experts

_VOCABULARY = 40


def mixtral():
    torch.manual_seed(3)
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=_VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=4,
            initializer_range=0.3,
            sliding_window=None,
        )
    )


def batches(size):
    generator = torch.Generator().manual_seed(7)
    return [[torch.randint(0, _VOCABULARY, (2, 6), generator=generator) for _ in range(size)] for _ in range(3)]


def test_mixtral_trains_as_in_one_piece(rank, size):
    for config in (NONE, MoEConfig(moe_load_balancing="none", moe_all_to_all_dispatcher=False)):
        alone = mixtral()
        groups = make_expert_groups(size, 0)
        model = spread_experts(copy.deepcopy(alone), groups.ep, config)
        assert all(isinstance(layer.mlp, MoELayer | MixtralSparseMoeBlock) for layer in model.model.layers)
        with wrapping(groups):
            model = FSDP(
                model,
                auto_wrap_policy=ModuleWrapPolicy({MixtralDecoderLayer}),
                use_orig_params=True,
                device_id=torch.device("cpu"),
            )
        whole_optimizer, optimizer = optimizer_of(alone), optimizer_of(model)
        for step in batches(size):
            whole_optimizer.zero_grad()
            optimizer.zero_grad()
            losses = torch.stack([alone(tokens, labels=tokens).loss for tokens in step])
            losses.mean().backward()
            loss = model(step[rank], labels=step[rank]).loss
            loss.backward()
            close(loss.detach(), losses[rank].detach(), "loss")
            whole_optimizer.step()
            optimizer.step()
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
            found = model.state_dict()
        for name, value in alone.state_dict().items():
            own = value.chunk(size)[rank] if "experts" in name else value
            close(found[name], own, name)


def test_experts_and_sequences_are_spread_together(rank, size):
    alone = mixtral()
    groups = make_expert_groups(size, 0)
    tokens = torch.randint(0, _VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(7))
    expected = alone(tokens, labels=tokens)
    expected.loss.backward()
    whole = dict(alone.named_parameters())
    for communication in COMMUNICATIONS:
        model = spread_experts(copy.deepcopy(alone), groups.ep, NONE)
        model.zero_grad()
        spread_sequences(model, groups.ep, communication)
        own = part_of_batch(tokens, rank, size)
        model(own, labels=own).loss.backward()
        for name, parameter in model.named_parameters():
            group = groups.same if "experts" in name else dist.group.WORLD
            dist.all_reduce(parameter.grad, group=group)
            gradient = whole[name].grad.chunk(size)[rank] if "experts" in name else whole[name].grad
            close(parameter.grad / group.size(), gradient, f"gradient of {name}")


def test_router_logits_are_recorded_as_before(rank, size):
    alone = mixtral().eval()
    model = spread_experts(copy.deepcopy(alone), make_expert_groups(size, 0).ep, MoEConfig())
    tokens = batches(size)[0][rank]
    expected = alone(tokens, labels=tokens, output_router_logits=True)
    found = model(tokens, labels=tokens, output_router_logits=True)
    for one, other in zip(found.router_logits, expected.router_logits, strict=True):
        close(one, other, "router logits")
    close(found.loss, expected.loss, "loss with that of the router")


def test_training_with_each_balancing_lowers_the_loss(rank, size):
    for balancing in ("sinkhorn", "balanced", "aux_loss"):
        config = MoEConfig(moe_load_balancing=balancing, global_token_shuffle=balancing == "sinkhorn")
        groups = make_expert_groups(size, 0)
        model = spread_experts(mixtral(), groups.ep, config)
        optimizer = optimizer_of(model)
        tokens = batches(size)[0][rank]
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = model(tokens, labels=tokens).loss
            loss.backward()
            for name, parameter in model.named_parameters():
                group = groups.same if "experts" in name else dist.group.WORLD
                dist.all_reduce(parameter.grad, group=group)
                parameter.grad /= group.size()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.7 * losses[0], (balancing, losses)


def test_experts_on_the_meta_device_get_different_values(rank, size):
    with torch.device("meta"):
        model = mixtral()
    spread_experts(model, make_expert_groups(size, 0).ep, MoEConfig())
    model.to_empty(device="cpu")
    torch.manual_seed(11)
    for module in model.modules():
        with drawing_apart(module):
            model._init_weights(module)
    for name, module in model.named_modules():
        if isinstance(module, OwnExperts):
            assert module.gate_up_proj.shape[0] == 4 // size
            assert 0.2 < module.gate_up_proj.std() < 0.4
        for key, parameter in module._parameters.items():
            if parameter is None:
                continue
            all_ranks = [torch.empty_like(parameter) for _ in range(size)]
            dist.all_gather(all_ranks, parameter.detach())
            is_alike = torch.equal(all_ranks[0], all_ranks[1])
            assert is_alike is not isinstance(module, OwnExperts), f"{name}.{key}"
