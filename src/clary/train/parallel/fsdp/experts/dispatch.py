"""Sending of tokens to the ranks of their experts and of results back, with gradients in both directions.

Shapes: T tokens of this rank, K experts per token, D channels, R rows that this rank computes: a row is a token for one
expert. Ranks may have different numbers of tokens, including 0.

[Note: same steps] The graph has the same nodes on every rank, even for empty shares: backward communicates, and would
wait for a rank that left a node out.

All ranks of a group call these functions in the same order. The process group's own timeout bounds every wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.nn import functional

from clary.train.parallel.fsdp.experts.routing import Routes
from clary.train.parallel.tensor import collectives
from clary.train.parallel.tensor.collectives import TensorGroup

Compute = Callable[[torch.Tensor, list[int]], torch.Tensor]  # rows by expert, rows per expert -> outputs


def mix_by_exchange(
    hidden: torch.Tensor, routes: Routes, compute: Compute, group: TensorGroup, num_experts: int
) -> torch.Tensor:
    """Return the weighted sum of each token's experts, [T, D]; a token is sent to its experts' ranks alone.

    Args:
        hidden: [T, D].
        routes: experts and weights of the tokens, each [T, K].
        compute: maps rows [R, D], ordered by this rank's experts, and the number of rows per expert to outputs [R, D].
        num_experts: E, over all ranks; a multiple of the group's size.
    """
    num_choices = routes.experts.shape[1]
    expert_of_row = routes.experts.flatten()
    order = expert_of_row.argsort(stable=True)
    sent = torch.bincount(expert_of_row, minlength=num_experts).view(group.size, -1)
    received = _exchange_counts(sent, group)
    sends, receives = torch.stack((sent.sum(1), received.sum(1))).tolist()
    rows = exchange_rows(hidden.index_select(0, order // num_choices), sends, receives, group)
    by_expert = _expert_of_received(received).argsort(stable=True)
    outputs = compute(rows.index_select(0, by_expert), received.sum(0).tolist())
    back = exchange_rows(outputs.index_select(0, by_expert.argsort()), receives, sends, group)
    of_tokens = back.index_select(0, order.argsort()).unflatten(0, (-1, num_choices))
    return (of_tokens * routes.weights.unsqueeze(-1)).sum(1).to(hidden.dtype)


def mix_by_gathering(
    hidden: torch.Tensor, routes: Routes, compute: Compute, group: TensorGroup, num_experts: int
) -> torch.Tensor:
    """Return the weighted sum of each token's experts, [T, D]; all tokens are sent to all ranks of the group.

    Args: as `mix_by_exchange`.
    """
    num_tokens, num_choices = routes.experts.shape
    longest = int(collectives.gather_whole(torch.tensor([num_tokens], device=hidden.device), group).max())
    missing = longest - num_tokens
    all_hidden = collectives.all_gather(functional.pad(hidden, (0, 0, 0, missing)), group, 0)
    all_weights = collectives.all_gather(functional.pad(routes.weights, (0, 0, 0, missing)), group, 0)
    all_experts = collectives.gather_whole(functional.pad(routes.experts, (0, 0, 0, missing), value=-1), group)
    num_own = num_experts // group.size
    own_expert = all_experts.flatten() - group.rank * num_own
    is_elsewhere = (own_expert < 0) | (own_expert >= num_own)
    own_expert = own_expert.masked_fill(is_elsewhere, num_own)  # sorts after this rank's experts
    counts = torch.bincount(own_expert, minlength=num_own + 1).tolist()[:num_own]
    order = own_expert.argsort(stable=True)[: sum(counts)]
    outputs = compute(all_hidden.index_select(0, order // num_choices), counts)
    weighted = outputs * all_weights.flatten().index_select(0, order).unsqueeze(1)
    total = torch.zeros_like(all_hidden, dtype=weighted.dtype).index_add(0, order // num_choices, weighted)
    return collectives.reduce_scatter(total, group, 0)[:num_tokens].to(hidden.dtype)


def shuffle(rows: torch.Tensor, group: TensorGroup, seed: int) -> tuple[torch.Tensor, Callable[[Any], torch.Tensor]]:
    """Return rows mixed from all ranks, and a function that sends results back to the original ranks and order.

    Args:
        rows: [n, ...], this rank's rows; ranks may have different n.
        seed: this rank's seed; the same seed and n give the same order, so recomputation repeats the order.
    """
    order = torch.randperm(rows.shape[0], generator=torch.Generator().manual_seed(seed)).to(rows.device)
    sends = [rows.shape[0] // group.size + (to < rows.shape[0] % group.size) for to in range(group.size)]
    counts = torch.tensor(sends, device=rows.device).view(group.size, 1)
    receives = _exchange_counts(counts, group).flatten().tolist()
    mixed = exchange_rows(rows.index_select(0, order), sends, receives, group)
    return mixed, lambda results: exchange_rows(results, receives, sends, group).index_select(0, order.argsort())


def exchange_rows(rows: torch.Tensor, sends: list[int], receives: list[int], group: TensorGroup) -> torch.Tensor:
    """Send rows to the ranks of the group and return the rows received, in rank order; shares may be empty.

    Args:
        rows: [sum of `sends`, ...]; the result is [sum of `receives`, ...].
        sends: number of consecutive rows for each rank; `receives`: number of rows from each rank.
    """
    if group.size == 1:
        return rows
    received: torch.Tensor = _Exchange.apply(rows, sends, receives, group)
    return received


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sends: list[int], receives: list[int], group: TensorGroup) -> Any:
        ctx.sends, ctx.receives, ctx.group = sends, receives, group
        return _all_to_all(rows, sends, receives, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _all_to_all(gradient, ctx.receives, ctx.sends, ctx.group), None, None, None


def _all_to_all(rows: torch.Tensor, sends: list[int], receives: list[int], group: TensorGroup) -> torch.Tensor:
    received = rows.new_empty((sum(receives), *rows.shape[1:]))
    dist.all_to_all_single(received, rows.contiguous(), receives, sends, group=group.process_group)
    return received


def _exchange_counts(sent: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Send counts of rows [ranks, ...], one entry per rank; return each rank's counts for this rank."""
    if group.size == 1:
        return sent
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group.process_group)
    return received


def _expert_of_received(received: torch.Tensor) -> torch.Tensor:
    """Return the local expert number of each received row; rows are ordered by rank, then by expert."""
    experts = torch.arange(received.shape[1], device=received.device).repeat(received.shape[0])
    return experts.repeat_interleave(received.flatten())
