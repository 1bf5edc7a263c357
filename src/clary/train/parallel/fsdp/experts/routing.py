"""Routing: the choice of each token's experts and of the experts' weights.

Shapes: T tokens of this rank, E experts of the layer, K experts per token.

[Note: weights] A token's weights are the softmax of the router's logits at its K experts, scaled to the sum 1, as in
Mixtral. Balancing changes the choice of experts, not the formula of weights.

[Note: added losses] Added losses reach the router as gradients: backward adds a loss's gradient to the logits'
gradient, as if the loss were part of this rank's loss. Each added loss is the mean over this rank's tokens, and
averaging gradients over ranks makes it the mean over all tokens. A script that multiplies its loss by a factor (1 / the
number of accumulated batches) sets `MoELayer.added_loss_scale` to this factor.

Source: arXiv 2101.03961 section 2.2 (loss for even shares); arXiv 2202.08906 section 3 (z loss); arXiv 2202.01169
appendix B (choice by Sinkhorn's scaling); arXiv 2103.16716 (even shares by assignment).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from clary.train.parallel.fsdp.experts.configuration import MoEConfig

_SINKHORN_ROUNDS = 30  # after this many rounds, a batch's scores change by less than 1e-4
_PROPOSAL_ROUNDS = 200  # in practice a few tens suffice; otherwise the remaining tokens may exceed an expert's share


@dataclass(frozen=True, eq=False)
class Routes:
    """The chosen experts of tokens, and the weights of their outputs.

    Args:
        experts: [T, K], int64, K different experts of each token.
        weights: [T, K], weight of each expert's output.
    """

    experts: torch.Tensor
    weights: torch.Tensor


def route(logits: torch.Tensor, top_k: int, config: MoEConfig, *, scale: float = 1.0) -> Routes:
    """Return the routes of tokens in training, balanced by `config`; evaluation uses `best_routes`.

    Args:
        logits: the router's logits, [T, E].
        scale: factor of added losses.
    """
    if config.moe_load_balancing == "none":
        return best_routes(logits, top_k)
    if config.moe_z_loss_coeff:
        logits = _add_loss(logits, z_loss(logits), scale * config.moe_z_loss_coeff)
    if config.moe_load_balancing == "sinkhorn":
        return _weighed(logits, sinkhorn_scores(logits).topk(top_k, dim=-1).indices)
    if config.moe_load_balancing == "balanced":
        return _weighed(logits, even_choice(logits, top_k))
    routes = best_routes(logits, top_k)
    if config.moe_aux_loss_coeff:
        added = even_share_loss(logits, routes.experts)
        routes = best_routes(_add_loss(logits, added, scale * config.moe_aux_loss_coeff), top_k)
    return routes


def best_routes(logits: torch.Tensor, top_k: int) -> Routes:
    """Return for each token its K best experts, the best first; see [Note: weights]."""
    return _weighed(logits, logits.detach().topk(top_k, dim=-1).indices)


def even_share_loss(logits: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Return E * sum over experts of (share of tokens * mean probability): 1 for even shares, at most E.

    Args:
        logits: [T, E]; gradients flow only through the probabilities.
        experts: [T, K], experts chosen for each token.
    """
    num_tokens, num_experts = logits.shape
    shares = torch.bincount(experts.flatten(), minlength=num_experts) / max(experts.numel(), 1)
    return num_experts * (shares * _softmax(logits).sum(0)).sum() / max(num_tokens, 1)


def z_loss(logits: torch.Tensor) -> torch.Tensor:
    """Return the mean over tokens of the square of log sum exp(logits).

    Args:
        logits: [T, E].
    """
    return logits.float().logsumexp(-1).square().sum() / max(logits.shape[0], 1)


@torch.no_grad()
def sinkhorn_scores(logits: torch.Tensor) -> torch.Tensor:
    """Return logits [T, E], shifted so that all experts are in equal demand.

    Rows and columns of exp(logits) are scaled in turn, until each row sums to 1 and each column to T / E; a token's row
    orders its experts. A row's scale does not change this order and is left out of the result.
    """
    scores = logits.float()
    num_tokens, num_experts = scores.shape
    if num_tokens == 0:
        return scores
    of_experts = scores.new_zeros(num_experts)
    for _ in range(_SINKHORN_ROUNDS):
        of_tokens = -(scores + of_experts).logsumexp(1, keepdim=True)
        of_experts = math.log(num_tokens / num_experts) - (scores + of_tokens).logsumexp(0)
    return scores + of_experts


@torch.no_grad()
def even_choice(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Return K experts for each token, [T, K]; no expert accepts more than T K / E of them, rounded up.

    Tokens propose to their best experts; an expert with too many proposals keeps the tokens with the highest
    probability for it, and the refused tokens propose to their next best experts. The result is a stable matching. A
    token that fewer than K experts accept is also assigned to the best of the experts that refused it; these experts
    then exceed their shares.
    """
    num_tokens, num_experts = logits.shape
    share = -(-num_tokens * top_k // num_experts)
    scores = _softmax(logits)
    is_open = torch.ones_like(scores, dtype=torch.bool)
    for _ in range(_PROPOSAL_ROUNDS):
        wanted = scores.masked_fill(~is_open, -1.0)
        is_asked = torch.zeros_like(is_open).scatter_(1, wanted.topk(top_k, dim=1).indices, True) & is_open
        asked = scores.masked_fill(~is_asked, -1.0)
        kept = torch.zeros_like(is_open).scatter_(0, asked.topk(min(share, num_tokens), dim=0).indices, True)
        refused = is_asked & ~kept
        if not refused.any():
            break
        is_open &= ~refused
    # Experts that refused a token rank after all other experts, the better ones first.
    return torch.where(is_open, scores + 1.0, scores).topk(top_k, dim=1).indices


class _AddLoss(torch.autograd.Function):
    """Returns its first argument; in backward its second argument gets `factor` as gradient."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, loss: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.gradient = torch.full_like(loss, factor)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return gradient, ctx.gradient, None


def _add_loss(logits: torch.Tensor, loss: torch.Tensor, factor: float) -> torch.Tensor:
    added: torch.Tensor = _AddLoss.apply(logits, loss, factor)
    return added


def _weighed(logits: torch.Tensor, experts: torch.Tensor) -> Routes:
    weights = _softmax(logits).gather(1, experts)
    return Routes(experts, weights / weights.sum(-1, keepdim=True))


def _softmax(logits: torch.Tensor) -> torch.Tensor:
    return torch.softmax(logits.float(), dim=-1)
