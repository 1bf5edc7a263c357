"""Layers that replace a model's mixture of experts.

Where: `spreading` changes a module's class to a subclass of one of these classes and of the module's own class: so
wrapping policies match by either class, and names of parameters stay.

[Note: gradients] A rank's experts see the tokens of all ranks of its group, so their gradients are sums over these
ranks' losses, and FSDP averages them over the ranks that hold the same experts. The result is the mean over all ranks
times the size of the group. So gradients of experts' parameters are divided by that size; gradients of experts' inputs
are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from clary.train.parallel.fsdp.experts.configuration import MoEConfig
from clary.train.parallel.fsdp.experts.dispatch import mix_by_exchange, mix_by_gathering, shuffle
from clary.train.parallel.fsdp.experts.routing import Routes, best_routes, route
from clary.train.parallel.tensor.collectives import TensorGroup, scale_gradient


@dataclass(frozen=True, eq=False)
class Spread:
    """The distribution of a layer's experts over ranks.

    Args:
        num_experts: number of the layer's experts, over all ranks.
        top_k: number of experts per token.
        returns_logits: whether the layer also returns the router's logits, as in transformers before 5.
    """

    group: TensorGroup
    config: MoEConfig
    num_experts: int
    top_k: int
    returns_logits: bool

    @property
    def own(self) -> range:
        """The numbers of this rank's experts."""
        num_own = self.num_experts // self.group.size
        return range(self.group.rank * num_own, (self.group.rank + 1) * num_own)

    @property
    def seed(self) -> int:
        """Seed of random choices, different on each rank of the group."""
        return self.config.random_seed + self.group.rank


class MoELayer(nn.Module):
    """A router, `gate`, and the experts of this rank, `experts`; made by `spread_experts`.

    `added_loss_scale` scales the balancing losses by the same factor as the script scales its loss: 1 / the number of
    batches whose gradients it accumulates.
    """

    added_loss_scale: float = 1.0
    _clary_spread: Spread

    def forward(self, hidden_states: torch.Tensor) -> Any:
        """Return the weighted sum of each token's experts, [..., D], like `hidden_states`.

        Returns: the sum alone; with routers of transformers before 5, a tuple of the sum and the logits, [tokens,
            experts].
        """
        spread = self._clary_spread
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        jitter = float(getattr(self, "jitter_noise", 0.0) or 0.0)
        if self.training and jitter > 0:
            rows = rows * torch.empty_like(rows).uniform_(1.0 - jitter, 1.0 + jitter)
        put_back = None
        if self.training and spread.config.global_token_shuffle and spread.group.size > 1:
            rows, put_back = shuffle(rows, spread.group, spread.seed)
        logits, routes = self._routes(rows)
        mix = mix_by_exchange if spread.config.moe_all_to_all_dispatcher else mix_by_gathering
        mixed = mix(rows, routes, cast("nn.Module", self.experts), spread.group, spread.num_experts)
        if put_back is not None:
            mixed = put_back(mixed)
        mixed = mixed.view(hidden_states.shape)
        return (mixed, logits) if spread.returns_logits else mixed

    def _routes(self, rows: torch.Tensor) -> tuple[torch.Tensor, Routes]:
        spread = self._clary_spread
        said = cast("nn.Module", self.gate)(rows)
        logits = said[0] if isinstance(said, tuple) else said
        if self.training and spread.config.moe_load_balancing != "none":
            routes = route(logits, spread.top_k, spread.config, scale=self.added_loss_scale)
        elif isinstance(said, tuple):  # the router chooses experts itself and returns logits, weights and experts
            return logits, Routes(said[2], said[1])
        else:
            routes = best_routes(logits, spread.top_k)
        if not isinstance(said, tuple):
            routes = Routes(routes.experts, routes.weights.to(rows.dtype))
        return logits, routes


class OwnExperts(nn.Module):
    """The experts of this rank, called with their rows; see [Note: gradients]. Holds no other parameters."""

    _clary_spread: Spread

    def forward(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Return the output of each row's expert, like `rows`.

        Args:
            rows: [R, D], ordered by expert; `counts`: number of rows of each expert, 0 allowed.
        """
        size = self._clary_spread.group.size
        parts = scale_gradient(rows, float(size)).split(counts)
        return scale_gradient(torch.cat(self._outputs(parts)), 1 / size)

    def _outputs(self, parts: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        raise NotImplementedError


class FusedExperts(OwnExperts):
    """Experts in two parameters, `gate_up_proj` [experts, 2 I, D] and `down_proj` [experts, D, I], and `act_fn`."""

    def _outputs(self, parts: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        act = cast("nn.Module", self.act_fn)
        outputs = []
        # One unbind for all experts: indexing would allocate a gradient of the whole parameter for each expert.
        weights = zip(
            cast("torch.Tensor", self.gate_up_proj).unbind(), cast("torch.Tensor", self.down_proj).unbind(), strict=True
        )
        for part, (gate_up, down) in zip(parts, weights, strict=True):
            gate, up = functional.linear(part, gate_up).chunk(2, dim=-1)
            outputs.append(functional.linear(act(gate) * up, down))
        return outputs


class ListedExperts(OwnExperts):
    """Experts that are modules, under their numbers in the whole layer, so that states use the model's names."""

    def _outputs(self, parts: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        return [expert(part) for expert, part in zip(self.children(), parts, strict=True)]


@contextmanager
def drawing_apart(module: nn.Module) -> Iterator[None]:
    """Make random values drawn for experts, within a block, differ between the ranks of their group.

    Where: delayed initialisation uses it for every module whose parameters are not drawn whole and then cut. It has no
    effect on modules other than experts. After the block all ranks continue with the same random state.
    """
    spread = getattr(module, "_clary_spread", None)
    if spread is None or isinstance(module, MoELayer):
        yield
        return
    first = int(torch.randint(2**31, ()))  # the same on all ranks, but different for each module
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(first + spread.seed)
        yield
