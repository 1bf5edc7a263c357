"""The positions of a sequence that each rank of a context group holds. Without I/O or communication.

    rank       0     1     2     3          n = 4 ranks, 2 n chunks of equal length
    chunks    0 7   1 6   2 5   3 4         an early and a late chunk: causal attention costs each rank the same

A rank's part is its two chunks of S / 2, the earlier one first: S positions. SMP scripts cut their batches in the same
way.

A rank's queries need the first half of a lower rank's keys; the second half of its queries needs all keys of a higher
rank; see `visible`.
Source: arXiv 2309.14509 and 2310.01889 (attention over parts of a sequence); arXiv 2311.09431 (parts of equal cost).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Visible:
    """Attention to one rank's keys: this rank's queries from `first_query` on see the first `num_keys` of these keys.

    Args:
        is_causal: whether a query sees the keys up to its own position; else it sees all these keys.
    """

    first_query: int
    num_keys: int
    is_causal: bool


def chunks_of(rank: int, size: int) -> tuple[int, int]:
    """Return the numbers of the two chunks that a rank holds, of 2 * `size` chunks."""
    return rank, 2 * size - 1 - rank


def visible(rank: int, source: int, length: int) -> Visible:
    """Return the part of rank `source`'s keys that queries of `rank` see.

    Args:
        length: length of a rank's part, S.
    """
    if source == rank:  # positions increase within the part, so one causal mask is right
        return Visible(0, length, is_causal=True)
    if source < rank:
        return Visible(0, length // 2, is_causal=False)
    return Visible(length // 2, length, is_causal=False)


def positions_of(rank: int, size: int, length: int, device: torch.device | str | None = None) -> torch.Tensor:
    """Return the positions of a rank's part in the whole sequence, [S].

    Args:
        rank: rank in the context group.
        size: number of ranks in that group.
        length: length of the part, S; the whole sequence has `size` * S positions.
        device: None is torch's default.

    Raises: ValueError if `length` is odd.
    """
    if length % 2:
        raise ValueError(
            f"context parallelism: this rank's part of a sequence has length {length}; it must be even, "
            "since the part is two chunks of a sequence that is cut into 2 * context_parallel_degree "
            "chunks"
        )
    chunk = length // 2
    within = torch.arange(chunk, device=device)
    return torch.cat([within + number * chunk for number in chunks_of(rank, size)])


def whole_order(size: int) -> list[int]:
    """Return the index of chunk 0, 1, ... in the concatenation of all ranks' parts, in rank order."""
    held = [chunk for rank in range(size) for chunk in chunks_of(rank, size)]
    return [held.index(chunk) for chunk in range(2 * size)]
