"""Distribution of a model's experts over ranks: each rank keeps its own experts of every layer with experts.

[Note: structure] A mixture of experts is a module whose children with parameters are `gate` and `experts`, as in
transformers' Mixtral and in models written like it. `gate` is a linear layer, or a module that returns logits, weights
and experts (transformers 5). `experts` is a list of modules, each a function of rows (before transformers 5), or has
the parameters `gate_up_proj` [E, 2 I, D] and `down_proj` [E, D, I] and the function `act_fn`. The number of experts per
token is `top_k` of the mixture or its gate. A token goes to its best experts by the softmax of the logits, which also
weighs them: `trial` tries it with the mixture's own code.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from clary.train.parallel.fsdp.cuts import Cut, mark
from clary.train.parallel.fsdp.experts.configuration import MoEConfig
from clary.train.parallel.fsdp.experts.layer import FusedExperts, ListedExperts, MoELayer, OwnExperts, Spread
from clary.train.parallel.fsdp.experts.trial import try_routing
from clary.train.parallel.fsdp.layers.classes import become
from clary.train.parallel.tensor.collectives import TensorGroup, first_values

_FUSED = ("gate_up_proj", "down_proj")
_NUM_FUSED_DIMENSIONS = 3


def spread_experts(
    model: nn.Module, group: TensorGroup, config: MoEConfig, *, from_first_rank: bool = False
) -> nn.Module:
    """Keep this rank's experts of every layer, in place, and return the model; see [Note: structure].

    Experts are kept in the order of the group's ranks: the first rank has the first experts. Every rank of the group
    calls it. With a group of one rank all experts stay, and tokens are balanced by `config`.

    Args:
        from_first_rank: the group's first rank sends the experts; other ranks' experts may be on the meta device, and
            are in memory afterwards. If False, each rank keeps a part of its own model's experts: all ranks must have
            made the model from the same seed, or from the same files.

    Raises: ValueError if the model has no layer of experts, a layer of another structure or with routing by another
        formula, or a number of experts that the group does not divide; the model is unchanged then.
    """
    blocks = [(name, module) for name, module in model.named_modules() if _looks_like_block(module)]
    if not blocks:
        raise ValueError(
            f"expert_parallel_degree is {group.size}: {type(model).__name__} has no layer of experts (a module with a "
            "`gate` and `experts`); set it to 1"
        )
    for name, block in blocks:
        _check(name, block, group)
    for _, block in blocks:
        _spread_block(block, group, config, from_first_rank=from_first_rank)
    return model


def is_of_experts(module: nn.Module) -> bool:
    """Return whether all parameters of a module are experts' parameters; False without parameters."""
    found = False
    for part in module.modules():
        if isinstance(part, OwnExperts):
            found = True
        elif part._parameters and not getattr(part, "_clary_is_expert", False):
            return False
    return found or bool(getattr(module, "_clary_is_expert", False))


def _looks_like_block(module: nn.Module) -> bool:
    children = dict(module.named_children())
    return not isinstance(module, MoELayer) and {"gate", "experts"} <= children.keys()


def _check(name: str, block: nn.Module, group: TensorGroup) -> None:
    gate, experts = cast("nn.Module", block.gate), cast("nn.Module", block.experts)
    others = [
        child
        for child, module in block.named_children()
        if child not in ("gate", "experts") and any(True for _ in module.parameters())
    ]
    others += [child for child, one in block._parameters.items() if one is not None]
    if others:
        raise ValueError(f"{name} has {', '.join(others)} besides its experts; a layer with these cannot be spread")
    if not isinstance(experts, nn.ModuleList) and not _is_fused(experts):
        raise ValueError(
            f"{name}.experts is a {type(experts).__name__} with parameters "
            f"{ {key: tuple(one.shape) for key, one in experts.named_parameters()} }; expected a ModuleList, or "
            "gate_up_proj [E, 2 I, D] and down_proj [E, D, I] with act_fn"
        )
    top_k = _top_k(name, block)
    known = {key for key, _ in gate.named_parameters()} | {key for key, _ in gate.named_buffers()}
    if "weight" not in known or not known <= {"weight", "bias"}:
        raise ValueError(
            f"{name}.gate is a {type(gate).__name__} with {', '.join(sorted(known)) or 'no parameters'}; expected a "
            "linear layer, or a router with `weight` alone"
        )
    if not all(getattr(owner, "norm_topk_prob", True) for owner in (block, gate)):
        raise ValueError(f"{name} does not scale the weights of a token's experts to the sum 1 (norm_topk_prob)")
    num_experts = _num_experts(experts)
    if num_experts % group.size:
        raise ValueError(
            f"{name} has {num_experts} experts, no multiple of expert_parallel_degree, which is {group.size}"
        )
    try_routing(name, block, num_experts, top_k)


def _is_fused(experts: nn.Module) -> bool:
    shapes = {name: tuple(one.shape) for name, one in experts.named_parameters()}
    if set(shapes) != set(_FUSED) or not callable(getattr(experts, "act_fn", None)):
        return False
    if any(len(shape) != _NUM_FUSED_DIMENSIONS for shape in shapes.values()):
        return False
    (num_experts, double, width), (same, out, inner) = shapes["gate_up_proj"], shapes["down_proj"]
    return (num_experts, double, width) == (same, 2 * inner, out) and not getattr(experts, "is_transposed", False)


def _num_experts(experts: nn.Module) -> int:
    return len(experts) if isinstance(experts, nn.ModuleList) else len(cast("torch.Tensor", experts.gate_up_proj))


def _top_k(name: str, block: nn.Module) -> int:
    for owner in (block, block.gate):
        if hasattr(owner, "top_k"):
            return int(cast("Any", owner).top_k)
    raise ValueError(f"{name} does not say how many experts a token goes to; expected `top_k` on it or on its gate")


def _spread_block(block: nn.Module, group: TensorGroup, config: MoEConfig, *, from_first_rank: bool) -> None:
    experts = cast("nn.Module", block.experts)
    is_list = isinstance(experts, nn.ModuleList)
    spread = Spread(
        group, config, _num_experts(experts), _top_k("", block), returns_logits=isinstance(block.gate, nn.Linear)
    )
    own: nn.Module
    if is_list:
        own = ListedExperts()
        for number, expert in enumerate(cast("nn.ModuleList", experts)):
            if from_first_rank:
                _send_whole(expert, group, is_kept=number in spread.own)
            if number in spread.own:
                own.add_module(str(number), expert)
                _mark_whole(expert, spread)
        own.train(experts.training)
        block.experts = own
    else:
        own = experts
        for name in _FUSED:
            _cut(own, name, spread, from_first_rank=from_first_rank)
        become(own, FusedExperts)
        vars(own)["_clary_is_expert"] = True
    own._clary_spread = spread
    become(block, MoELayer)
    block._clary_spread = spread


def _mark_whole(expert: nn.Module, spread: Spread) -> None:
    """Mark an expert's parameters as whole on one rank of the group: a cut into no parts."""
    for part in expert.modules():
        vars(part).update(_clary_is_expert=True, _clary_spread=spread)
        for name in part._parameters if spread.group.size > 1 else ():
            mark(part, name, Cut(axis="ep", dim=0, parts=()))


def _cut(experts: nn.Module, name: str, spread: Spread, *, from_first_rank: bool) -> None:
    whole = cast("nn.Parameter", getattr(experts, name))
    cut = Cut(axis="ep", dim=0, parts=(spread.num_experts,))
    values = first_values(whole, spread.group) if from_first_rank else whole
    own = cut.of(values, spread.group.rank, spread.group.size)
    setattr(experts, name, nn.Parameter(own, requires_grad=whole.requires_grad))
    if spread.group.size > 1:
        mark(experts, name, cut)


def _send_whole(module: nn.Module, group: TensorGroup, *, is_kept: bool) -> None:
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is None:
                continue
            values = first_values(parameter, group)
            if is_kept:
                part._parameters[name] = nn.Parameter(values, requires_grad=parameter.requires_grad)
