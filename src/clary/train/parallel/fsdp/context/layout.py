"""The positions of a sequence that each rank of a context group holds. Pure except for tensors of positions.

    rank       0     1     2     3          n = 4 ranks, 2 n chunks of equal length
    chunks    0 7   1 6   2 5   3 4         an early and a late chunk: causal attention costs each rank the same

A rank's part is its two chunks, the earlier first; a dimension of length S in it is 2 chunks of S / 2. Scripts for SMP
cut their batches in this way.

A rank needs half of another rank's keys, or all of them for half of its queries, depending on which rank is lower; see
`visible`.
Source: arXiv 2309.14509 and 2310.01889 (attention over parts of a sequence); arXiv 2311.09431 (parts of equal cost).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Visible:
    """The part of attention with one rank's keys: own queries from `first_query` on, the first `num_keys` keys.

    Args:
        is_causal: whether a query sees the keys up to its own place; else it sees all of them.
    """

    first_query: int
    num_keys: int
    is_causal: bool


def chunks_of(rank: int, size: int) -> tuple[int, int]:
    """Return the numbers of the two chunks that a rank holds, of 2 `size`."""
    return rank, 2 * size - 1 - rank


def visible(rank: int, source: int, length: int) -> Visible:
    """Return the part of rank `source`'s keys that queries of `rank` see.

    Args:
        length: of a rank's part, S.
    """
    if source == rank:  # positions rise within the part: one causal mask covers it
        return Visible(0, length, is_causal=True)
    if source < rank:
        return Visible(0, length // 2, is_causal=False)
    return Visible(length // 2, length, is_causal=False)


def positions_of(rank: int, size: int, length: int, device: torch.device | str | None = None) -> torch.Tensor:
    """Return the positions in the whole sequence of a rank's part of `length`, [S].

    Args:
        rank: in the context group.
        size: number of ranks in that group.
        length: of the part, S; the whole is `size` times as long.
        device: None is torch's default.

    Raises: ValueError if `length` is odd.
    """
    if length % 2:
        raise ValueError(
            f"context parallelism: this rank's part of a sequence has length {length}; it must be even: two chunks of "
            "a sequence that is cut into twice as many chunks as context_parallel_degree"
        )
    chunk = length // 2
    within = torch.arange(chunk, device=device)
    return torch.cat([within + number * chunk for number in chunks_of(rank, size)])


def whole_order(size: int) -> list[int]:
    """Return the place of chunk 0, 1, ... in the concatenation of all ranks' parts, in rank order."""
    held = [chunk for rank in range(size) for chunk in chunks_of(rank, size)]
    return [held.index(chunk) for chunk in range(2 * size)]
