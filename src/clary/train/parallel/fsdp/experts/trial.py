"""A trial of a layer of experts: whether it chooses and weighs experts as `routing.best_routes` does.

[Note: stand-ins] The layer's own code runs on a few rows, on the CPU, with a gate of drawn weights and with experts
that multiply rows by numbers of their own. So the trial needs none of the model's values, which may be on the meta
device, costs no more than the gate, and has the same result on every rank. A layer's buffers are drawn too: `MoELayer`
does not use them, so they must not matter.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import nn

from clary.train.parallel.fsdp.experts.routing import best_routes

_SHAPE = (2, 8)  # sequences and tokens of the trial
_SEED = 20231
_SPREAD = 3.0  # standard deviation of the gate's logits
_TOLERANCE = 1e-3  # of the largest output


def try_routing(name: str, block: nn.Module, num_experts: int, top_k: int) -> None:
    """Check a layer's routing; see [Note: stand-ins].

    Args:
        name: name of the layer, for errors.
        block: the layer, with `gate` and `experts`; it is left unchanged.
        num_experts: number of its experts.
        top_k: number of experts per token.

    Raises: ValueError if the layer's outputs differ from those with the best routes, or its code fails here.
    """
    what = f"{name} is a {type(block).__name__}"
    advice = (
        "expected a token's weights to be the softmax of its gate's logits at its best experts, scaled to the sum 1, "
        "as in Mixtral: set expert_parallel_degree to 1 and give transform no MoEConfig"
    )
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            found, expected = _outputs(block, num_experts, top_k)
    except Exception as error:
        raise ValueError(f"{what}, whose routing could not be tried ({type(error).__name__}: {error}); {advice}") from (
            error
        )
    if found.shape != expected.shape or not bool((found - expected).abs().max() <= _TOLERANCE * expected.abs().max()):
        raise ValueError(f"{what}, which chooses or weighs experts by another formula; {advice}")


def _outputs(block: nn.Module, num_experts: int, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the layer's output of random rows, and that with the best routes."""
    generator = torch.Generator().manual_seed(_SEED)
    weight = cast("torch.Tensor", cast("nn.Module", block.gate).weight)
    rows = torch.randn(*_SHAPE, weight.shape[-1], generator=generator)
    gate = _copy(cast("nn.Module", block.gate), generator)
    gate._parameters = {key: _drawn(one, generator) for key, one in gate._parameters.items()}
    gate._parameters["weight"] = nn.Parameter(
        torch.randn(weight.shape, generator=generator) * (_SPREAD * weight.shape[-1] ** -0.5), requires_grad=False
    )
    factors = torch.rand(num_experts, generator=generator) + 0.5
    own = _copy(block, generator)
    own._modules = {
        key: gate if key == "gate" else _Experts(factors) if key == "experts" else copy.deepcopy(one).eval()
        for key, one in block._modules.items()
        if one is not None
    }
    said = type(block).forward(own, rows.clone())
    found = said[0] if isinstance(said, tuple) else said
    of_gate: Any = gate(rows.flatten(0, 1))
    logits = of_gate[0] if isinstance(of_gate, tuple) else of_gate
    routes = best_routes(logits, top_k)
    sums = (routes.weights * factors[routes.experts]).sum(-1)
    return found.float(), rows * sums.view(*_SHAPE, 1)


def _copy(module: nn.Module, generator: torch.Generator) -> Any:
    """Return a shallow copy in evaluation, with buffers of its own."""
    made = copy.copy(module)
    vars(made).update(
        training=False,
        _parameters=dict(module._parameters),
        _buffers={key: _drawn(one, generator) for key, one in module._buffers.items()},
        _modules=dict(module._modules),
    )
    return made


def _drawn(tensor: torch.Tensor | None, generator: torch.Generator) -> Any:
    """Return a tensor of the same shape with drawn numbers; zeros for dtypes other than floats."""
    if tensor is None:
        return None
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    values = torch.randn(tensor.shape, generator=generator)
    return nn.Parameter(values, requires_grad=False) if isinstance(tensor, nn.Parameter) else values


class _Expert(nn.Module):
    def __init__(self, factor: torch.Tensor) -> None:
        super().__init__()
        self._factor = factor

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self._factor


class _Experts(nn.ModuleList):
    """Stands in for a list of experts, and for experts that are called with rows, chosen experts and weights."""

    def __init__(self, factors: torch.Tensor) -> None:
        super().__init__([_Expert(one) for one in factors])
        self._factors = factors

    def forward(self, rows: torch.Tensor, *routes: torch.Tensor) -> torch.Tensor:
        (experts,) = [one for one in routes if not one.is_floating_point()]
        (weights,) = [one for one in routes if one.is_floating_point()]
        return rows * (weights * self._factors[experts]).sum(-1, keepdim=True)
