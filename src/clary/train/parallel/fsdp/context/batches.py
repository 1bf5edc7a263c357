"""Cutting of batches into one part per rank of a context group, and exchange of the labels after chunks.

[Note: labels] A model that predicts the next token shifts labels by one; the label after a chunk is the first label of
the next chunk, which another rank may hold. So ranks exchange the first labels of their chunks; no label follows the
last chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from clary.train.parallel.fsdp.context.layout import chunks_of
from clary.train.parallel.tensor import collectives
from clary.train.parallel.tensor.collectives import TensorGroup

IGNORED_LABEL = -100  # torch's default in cross_entropy
_SEQUENCE = 1  # the dimension of a batch that is cut


def part_of_batch(batch: Any, rank: int, size: int) -> Any:
    """Return a rank's part of a batch: a tensor [B, T, ...], None, or a tuple, named tuple, list or dict of these.

    Raises: ValueError if 2 * `size` does not divide T; TypeError for another type.
    """
    if batch is None or size == 1:
        return batch
    if isinstance(batch, torch.Tensor):
        return _part(batch, rank, size)
    if isinstance(batch, Mapping):
        return {key: part_of_batch(one, rank, size) for key, one in batch.items()}
    if isinstance(batch, tuple | list):
        kind: Any = getattr(type(batch), "_make", type(batch))  # `_make` of a named tuple
        return kind(part_of_batch(one, rank, size) for one in batch)
    raise TypeError(f"context parallelism cuts tensors and tuples, lists and dicts of them; got {type(batch).__name__}")


def next_labels(labels: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Return, for each token of this rank's part, the next label in the whole sequence, [B, S].

    Every rank of the group calls it; see [Note: labels].

    Args:
        labels: labels of the part's tokens, not shifted, [B, S].
    """
    early, late = labels.chunk(2, _SEQUENCE)
    firsts = collectives.gather_whole(torch.stack((early[:, 0], late[:, 0])), group)  # [2 size, B]
    by_chunk = torch.cat((firsts, torch.full_like(firsts[:1], IGNORED_LABEL)))
    held = [chunk for rank in range(group.size) for chunk in chunks_of(rank, group.size)]
    behind = [
        by_chunk[held.index(chunk + 1) if chunk + 1 < 2 * group.size else -1]
        for chunk in chunks_of(group.rank, group.size)
    ]
    return torch.cat((early[:, 1:], behind[0].unsqueeze(1), late[:, 1:], behind[1].unsqueeze(1)), _SEQUENCE)


def part_loss(logits: torch.Tensor, following: torch.Tensor, group: TensorGroup, num_items: Any = None) -> torch.Tensor:
    """Return this rank's share of the mean cross entropy over the tokens of all parts, times the size of the group.

    The mean of the shares over the group's ranks is the loss of the whole sequences, even if ranks have different
    numbers of labels. FSDP averages gradients over the same ranks. Every rank of the group calls it.

    Args:
        logits: [B, S, V]; `following`: result of `next_labels`, [B, S].
        num_items: divisor of the summed losses, as transformers' `num_items_in_batch`; the result is then not
            multiplied by the size of the group. None is the number of labels.
    """
    total = functional.cross_entropy(
        logits.flatten(0, -2).float(), following.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    if num_items is not None:
        return total / num_items
    counts = collectives.gather_whole((following != IGNORED_LABEL).sum().view(1), group)
    return total * group.size / counts.sum()


def _part(tensor: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    length = tensor.shape[_SEQUENCE]
    if length % (2 * size):
        raise ValueError(
            f"context parallelism: a tensor of shape {tuple(tensor.shape)} is cut along dimension {_SEQUENCE}, whose "
            f"length {length} is no multiple of {2 * size}, twice context_parallel_degree: pad the sequences"
        )
    chunks = tensor.chunk(2 * size, _SEQUENCE)
    return torch.cat([chunks[number] for number in chunks_of(rank, size)], _SEQUENCE)
