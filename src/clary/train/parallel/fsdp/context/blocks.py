"""Attention of some queries to some keys, computed as one block of a softmax over a larger set of keys.

Shapes: B rows, H heads, S queries, P keys, D channels. `sums` [B, H, S] hold the log-sum-exp of each query's scores, in
float32 or wider: `merge` combines two blocks of the same queries, weighted by their sums, and each block's gradient
follows from the sums over all keys. Torch's kernels compute a block if they support it; else this module does, some
queries at a time.
Source: arXiv 2205.14135 section 3.1 (FlashAttention), 2310.01889.
"""

from __future__ import annotations

from typing import Any

import torch

_MAX_SCORES = 2**24  # maximum number of score matrix elements computed at once, 64 MiB
_LEAST = -1e30
_KERNEL_DTYPES = {"cpu": (torch.float32, torch.float64, torch.bfloat16), "cuda": (torch.bfloat16, torch.float16)}
_KERNEL_MAX_CHANNELS, _KERNEL_CHANNELS_STEP = 256, 8  # limits of torch's flash attention on GPUs

Positions = tuple[torch.Tensor, torch.Tensor]  # positions of queries, [S], and of keys, [P]
Block = tuple[torch.Tensor, torch.Tensor]  # output [B, H, S, D] in float32 or wider, sums


def block_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    is_causal: bool,
    positions: Positions | None = None,
    window: int | None = None,
) -> Block:
    """Return a block's output [B, H, S, D], in float32 or wider, and sums [B, H, S].

    Args:
        query: [B, H, S, D]; `key` and `value`: [B, H, P, D].
        scale: factor of the scores.
        is_causal: whether query i sees only the keys up to i.
        positions: positions of the queries and keys, used with `window`: a query sees the keys in the `window`
            positions up to its own; `is_causal` then has no effect.
    """
    kernel = _kernel(query, window)
    if kernel is not None:
        out, sums, *_ = kernel(query, key, value, is_causal=is_causal, scale=scale)
        return _wide(out), sums.contiguous()
    outs, all_sums = [], []
    for first, last in _tiles(query, key):
        scores = _scores(query, key, first, last, scale, is_causal, positions, window)
        sums = scores.logsumexp(-1)
        outs.append((scores - sums.clamp(min=_LEAST).unsqueeze(-1)).exp() @ _wide(value))
        all_sums.append(sums)
    return torch.cat(outs, 2), torch.cat(all_sums, 2)


def block_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    sums: torch.Tensor,
    *,
    scale: float,
    is_causal: bool,
    positions: Positions | None = None,
    window: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key and value from this block, in float32 or wider.

    Args:
        gradient: [B, H, S, D], gradient of `out` [B, H, S, D], the output over all keys.
        query: [B, H, S, D]; `key` and `value`: [B, H, P, D].
        sums: [B, H, S], over all keys.
        scale: as in `block_forward`; so are `is_causal`, `positions` and `window`.
    """
    if _kernel(query, window) is not None:
        found = _kernel_backward(gradient, query, key, value, out, sums, is_causal=is_causal, scale=scale)
        return tuple(_wide(one) for one in found)
    wide_key, wide_value, key_gradient, value_gradient = _wide(key), _wide(value), 0.0, 0.0
    query_gradients = []
    for first, last in _tiles(query, key):
        at = slice(first, last)
        scores = _scores(query, key, first, last, scale, is_causal, positions, window)
        weights = (scores - sums[:, :, at].unsqueeze(-1)).exp()
        tile = _wide(gradient[:, :, at])
        value_gradient = value_gradient + weights.transpose(-1, -2) @ tile
        centre = (tile * _wide(out[:, :, at])).sum(-1, keepdim=True)
        of_scores = weights * (tile @ wide_value.transpose(-1, -2) - centre) * scale
        query_gradients.append(of_scores @ wide_key)
        key_gradient = key_gradient + of_scores.transpose(-1, -2) @ _wide(query[:, :, at])
    return torch.cat(query_gradients, 2), torch.as_tensor(key_gradient), torch.as_tensor(value_gradient)


def merge(first: Block, second: Block) -> Block:
    """Return the output and sums of the same queries over the keys of two blocks."""
    sums = torch.logaddexp(first[1], second[1])
    # A query that sees no key of either block has sums of -inf: its shares are 0.
    shares = [(one - sums).exp().nan_to_num(0.0).unsqueeze(-1) for one in (first[1], second[1])]
    return first[0] * shares[0] + second[0] * shares[1], sums


def _tiles(query: torch.Tensor, key: torch.Tensor) -> list[tuple[int, int]]:
    batch, heads, num_queries, _ = query.shape
    step = max(_MAX_SCORES // max(batch * heads * key.shape[2], 1), 1)
    return [(first, min(first + step, num_queries)) for first in range(0, num_queries, step)]


def _scores(
    query: torch.Tensor,
    key: torch.Tensor,
    first: int,
    last: int,
    scale: float,
    is_causal: bool,
    positions: Positions | None,
    window: int | None,
) -> torch.Tensor:
    scores = _wide(query[:, :, first:last]) @ _wide(key).transpose(-1, -2) * scale
    if window is not None and positions is not None:
        distance = positions[0][first:last].unsqueeze(1) - positions[1]
        is_seen = (distance >= 0) & (distance < window)
    elif is_causal:
        places = torch.arange(key.shape[2], device=key.device)
        is_seen = places[first:last].unsqueeze(1) >= places
    else:
        return scores
    return scores.masked_fill(~is_seen, -torch.inf)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _kernel(query: torch.Tensor, window: int | None) -> Any:
    """Return torch's flash attention kernel that also returns sums; None if it does not support these arguments."""
    device = query.device.type
    if window is not None or query.dtype not in _KERNEL_DTYPES.get(device, ()):
        return None
    if device == "cpu":
        return getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    channels = query.shape[-1]
    if channels > _KERNEL_MAX_CHANNELS or channels % _KERNEL_CHANNELS_STEP:
        return None
    return getattr(torch.ops.aten, "_scaled_dot_product_flash_attention", None)


def _kernel_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    sums: torch.Tensor,
    *,
    is_causal: bool,
    scale: float,
) -> Any:
    gradient, out = gradient.to(query.dtype), out.to(query.dtype)
    if query.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, out, sums, 0.0, is_causal, scale=scale
        )
    unused = torch.empty((), dtype=torch.int64, device=query.device)  # random state, unused without dropout
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        gradient,
        query,
        key,
        value,
        out,
        sums,
        None,
        None,
        query.shape[2],
        key.shape[2],
        0.0,
        is_causal,
        unused,
        unused,
        scale=scale,
    )
