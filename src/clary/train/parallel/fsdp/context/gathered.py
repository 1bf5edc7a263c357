"""Attention of a part of a sequence to the whole sequence, with keys and values of all ranks gathered ("all_gather").

Shapes: B rows, H heads, G heads of keys and values, S positions of a part, T of the whole sequence, D channels.
Torch's kernels compute each of the two query chunks over the keys up to the chunk's end.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from clary.train.parallel.fsdp.context.layout import chunks_of, whole_order
from clary.train.parallel.tensor import collectives
from clary.train.parallel.tensor.collectives import TensorGroup

_SEQUENCE = 2  # the dimension of queries, keys and values


def attend_gathered(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    group: TensorGroup,
    *,
    scale: float,
    window: int | None = None,
    dropout_prob: float = 0.0,
) -> torch.Tensor:
    """Return causal attention of this rank's queries to all keys, [B, H, S, D]. Every rank of the group calls it.

    Args:
        query: [B, H, S, D]; `key` and `value`: [B, G, S, D].
        window: number of positions that a query sees, its own and earlier positions; None for all.
    """
    keys, values = _whole(torch.stack((key, value)), group).unbind()
    if query.shape[1] != keys.shape[1]:
        repeats = query.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)
    length = query.shape[_SEQUENCE] // 2
    outputs = []
    for queries, number in zip(query.chunk(2, _SEQUENCE), chunks_of(group.rank, group.size), strict=True):
        start, end = number * length, (number + 1) * length
        first = 0 if window is None else max(start - window + 1, 0)
        seen = slice(first, end)
        if window is None:
            mask = causal_lower_right(length, end)
        else:
            distance = torch.arange(start, end, device=query.device).unsqueeze(1) - torch.arange(
                first, end, device=query.device
            )
            mask = (distance >= 0) & (distance < window)
        outputs.append(
            functional.scaled_dot_product_attention(
                queries, keys[:, :, seen], values[:, :, seen], attn_mask=mask, dropout_p=dropout_prob, scale=scale
            )
        )
    return torch.cat(outputs, _SEQUENCE)


def _whole(both: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """Return keys and values of the whole sequence in its order, [2, B, G, T, D]."""
    chunks = collectives.all_gather(both, group, _SEQUENCE + 1).chunk(2 * group.size, _SEQUENCE + 1)
    return torch.cat([chunks[at] for at in whole_order(group.size)], _SEQUENCE + 1)
