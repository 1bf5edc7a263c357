"""Asynchronous gathers and reductions of flat buffers, in one stage, or in two stages across hosts.

Shapes: N elements of a whole buffer, S of a segment, B of a block. A block consists of the segments of the ranks with
the same local index on all hosts.

Each function starts a collective and returns a function that waits for it. All members of a group start the same
collectives in the same order.

[Note: reductions over gloo] torch's gloo implements reduce-scatter by an all-reduce of the whole buffer: twice the
bytes (each rank sends 2 (k-1)/k of the buffer, where (k-1)/k suffice; measured with torch 2.13). So with gloo, every
rank sends every other rank the other's segment, and sums the received segments in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from clary.train.parallel.equal_parts import add_up_part, gather_parts
from clary.train.parallel.sharded.groups import ShardingGroups


def start_all_gather(flat_N: torch.Tensor, own_S: torch.Tensor, groups: ShardingGroups) -> Callable[[], None]:
    """Gather the segments of all ranks into a buffer; `own_S` may have a wider type, and must not change meanwhile.

    Args:
        flat_N: overwritten, in the order of segments.
        own_S: this rank's segment.
        groups: all ranks of its sharding group call it.

    Returns: a function that waits for the end. All ranks must call it, since across hosts it starts the second stage.
    """
    if groups.grid is None or groups.across is None or groups.within is None:
        return _start_gather(flat_N, own_S.to(flat_N.dtype), groups.sharding)
    num_hosts, a_host = groups.grid
    place, own_host = divmod(groups.segment, num_hosts)
    block_B = flat_N.view(a_host, -1)[place]
    within = groups.within
    finish_network = _start_gather(block_B, block_B.view(num_hosts, -1)[own_host].copy_(own_S), groups.across)

    def finish() -> None:
        finish_network()
        _start_gather(flat_N, block_B, within)()

    return finish


def start_reduce_scatter(flat_N: torch.Tensor, groups: ShardingGroups) -> Callable[[], torch.Tensor]:
    """Sum a buffer over the sharding group; return a function that waits for this rank's summed segment.

    The buffer must not change until that function returns.
    """
    if groups.across is None or groups.within is None:
        return _start_reduction(flat_N, groups.sharding)
    across = groups.across
    finish_host = _start_reduction(flat_N, groups.within)
    return lambda: _start_reduction(finish_host(), across)()


def start_all_reduce(flat_N: torch.Tensor, group: dist.ProcessGroup) -> Callable[[], None]:
    """Sum a buffer over a group, in place; return a function that waits for the end."""
    if group.size() == 1:
        return _do_nothing
    work = dist.all_reduce(flat_N, group=group, async_op=True)
    return lambda: _wait(work)


def _start_gather(flat_N: torch.Tensor, part_S: torch.Tensor, group: dist.ProcessGroup) -> Callable[[], None]:
    work = gather_parts(flat_N, part_S, group, async_op=True)

    def finish() -> None:
        _wait(work)
        _keep(part_S)

    return finish


def _start_reduction(flat_N: torch.Tensor, group: dist.ProcessGroup) -> Callable[[], torch.Tensor]:
    size = group.size()
    if dist.get_backend(group) == "gloo":  # [Note: reductions over gloo]
        received_N = torch.empty_like(flat_N)
        work = dist.all_to_all_single(received_N, flat_N, group=group, async_op=True)

        def add_up() -> torch.Tensor:
            _wait(work)
            parts = received_N.view(size, -1)
            # `sum` adds in a wider type and rounds once, not once per rank.
            return parts.sum(0) if flat_N.dtype.itemsize < 4 else _add_in_order(parts)

        return add_up
    segment_S = flat_N.new_empty(flat_N.numel() // size)
    work = add_up_part(segment_S, flat_N, group, async_op=True)

    def finish() -> torch.Tensor:
        _wait(work)
        return segment_S

    return finish


def _add_in_order(parts: torch.Tensor) -> torch.Tensor:
    total_S = parts[0]
    for part_S in parts[1:]:
        total_S.add_(part_S)
    return total_S.clone()  # a copy, so that the whole buffer is freed


def _wait(work: Any) -> None:
    if work is not None:
        work.wait()


def _keep(_: torch.Tensor) -> None:
    """Keep a buffer alive until this call, since a collective reads it."""


def _do_nothing() -> None:
    pass
