"""Attention of a part of a sequence to the whole sequence, with keys and values passed around a ring ("p2p").

Shapes: B rows, H heads, G heads of keys and values, S positions of a part, D channels.

Each rank computes with the keys it holds while it sends them to the next rank; after n - 1 sends it has seen all keys.
Backward passes keys and values around once more, followed by their gradients, to which each rank adds its own; after n
sends the gradients reach the ranks that own the keys. A rank holds at most three parts of keys and values at once: its
own, the part in use, and the part that arrives.
Source: arXiv 2310.01889 (ring attention); arXiv 2311.09431 (parts of equal cost).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from clary.train.parallel.fsdp.context.blocks import Block, block_backward, block_forward, merge
from clary.train.parallel.fsdp.context.layout import positions_of, visible
from clary.train.parallel.tensor.autocast import cast_as_autocast, exact
from clary.train.parallel.tensor.collectives import TensorGroup


@dataclass(frozen=True, eq=False)
class _Settings:
    group: TensorGroup
    scale: float
    window: int | None


def attend_in_ring(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    group: TensorGroup,
    *,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Return causal attention of this rank's queries to all keys, [B, H, S, D]. Every rank of the group calls it.

    Under autocast inputs are cast to its dtype, as for torch's attention; scores and sums stay in float32 or wider.

    Args:
        query: [B, H, S, D]; `key` and `value`: [B, G, S, D].
        window: number of positions that a query sees, its own and earlier positions; None for all.
    """
    query, key, value = cast_as_autocast((query, key, value))
    settings = _Settings(group, scale, window)
    attended: torch.Tensor = _Ring.apply(query.contiguous(), torch.stack((key, value)), settings)
    return attended


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, both: torch.Tensor, settings: _Settings) -> torch.Tensor:
        held, block = both, None
        for source, moving in _turns(settings.group):
            sent = _send_on(held, settings.group) if moving else None
            with exact(query):
                block = _with_keys(query, held, source, settings, block)
            if sent is not None:
                held = sent.wait()
        assert block is not None  # the first turn has this rank's keys
        out = block[0].to(query.dtype)
        ctx.save_for_backward(query, both, out, block[1])
        ctx.settings = settings
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        query, held, out, sums = ctx.saved_tensors
        both_dtype = held.dtype
        settings, group = ctx.settings, ctx.settings.group
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        query_gradient = torch.zeros_like(query, dtype=wide)
        coming: _Sent | None = None
        for source, moving in _turns(group):
            sent = _send_on(held, group) if moving else None
            with exact(query):
                added = _gradients(query_gradient, (gradient.contiguous(), query, held, out, sums), source, settings)
            total = added if coming is None else coming.wait() + added
            coming = _send_on(total, group)
            if sent is not None:
                held = sent.wait()
        assert coming is not None
        return query_gradient.to(query.dtype), coming.wait().to(both_dtype), None


def _turns(group: TensorGroup) -> list[tuple[int, bool]]:
    """Return, for each turn, the rank whose keys this rank holds, and whether it passes them on."""
    return [((group.rank - turn) % group.size, turn + 1 < group.size) for turn in range(group.size)]


def _with_keys(
    query: torch.Tensor, held: torch.Tensor, source: int, settings: _Settings, before: Block | None
) -> Block:
    """Return output and sums over the keys of `before` and the keys in `held`."""
    seen = visible(settings.group.rank, source, query.shape[2])
    first = seen.first_query
    key, value = _repeated(held[:, :, :, : seen.num_keys], query)
    block = block_forward(query[:, :, first:].contiguous(), key, value, **_how(source, query, settings))
    if before is None:
        return block
    merged = merge((before[0][:, :, first:], before[1][:, :, first:]), block)
    if first == 0:
        return merged
    return torch.cat((before[0][:, :, :first], merged[0]), 2), torch.cat((before[1][:, :, :first], merged[1]), 2)


def _gradients(
    query_gradient: torch.Tensor, saved: tuple[torch.Tensor, ...], source: int, settings: _Settings
) -> torch.Tensor:
    """Return this rank's gradient of the keys and values of `source`; add to the queries' gradient in place."""
    gradient, query, held, out, sums = saved
    seen = visible(settings.group.rank, source, query.shape[2])
    first, num_keys = seen.first_query, seen.num_keys
    key, value = _repeated(held[:, :, :, :num_keys], query)
    parts = [one[:, :, first:].contiguous() for one in (gradient, query, out, sums)]
    of_query, of_key, of_value = block_backward(
        parts[0], parts[1], key, value, parts[2], parts[3], **_how(source, query, settings)
    )
    query_gradient[:, :, first:] += of_query
    added = torch.zeros_like(held, dtype=query_gradient.dtype)
    for into, one in zip(added, (of_key, of_value), strict=True):
        into[:, :, :num_keys] = one.unflatten(1, (held.shape[2], -1)).sum(2)
    return added


def _how(source: int, query: torch.Tensor, settings: _Settings) -> dict[str, Any]:
    rank, size, length = settings.group.rank, settings.group.size, query.shape[2]
    seen = visible(rank, source, length)
    how: dict[str, Any] = {"scale": settings.scale, "is_causal": seen.is_causal}
    if settings.window is not None:
        own = positions_of(rank, size, length, query.device)[seen.first_query :]
        others = positions_of(source, size, length, query.device)[: seen.num_keys]
        how.update(window=settings.window, positions=(own, others))
    return how


def _repeated(held: torch.Tensor, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Repeat keys and values for each head of the queries."""
    repeats = query.shape[1] // held.shape[2]
    key, value = held.repeat_interleave(repeats, 2) if repeats > 1 else held
    return key.contiguous(), value.contiguous()


@dataclass(frozen=True, eq=False)
class _Sent:
    """A send to the next rank and a receive from the previous rank; both tensors stay in memory until `wait`."""

    sent: torch.Tensor
    received: torch.Tensor
    works: list[Any]

    def wait(self) -> torch.Tensor:
        for work in self.works:
            work.wait()
        return self.received


def _send_on(tensor: torch.Tensor, group: TensorGroup) -> _Sent:
    """Start a send to the next rank and a receive of the same shape and dtype from the previous rank."""
    if group.size == 1:
        return _Sent(tensor, tensor, [])
    sent = tensor.contiguous()
    received = torch.empty_like(sent)
    to, source = (
        dist.get_global_rank(group.process_group, (group.rank + step) % group.size) for step in (1, group.size - 1)
    )
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent, to, group.process_group),
            dist.P2POp(dist.irecv, received, source, group.process_group),
        ]
    )
    return _Sent(sent, received, works)
