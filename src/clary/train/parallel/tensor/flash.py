"""Scaled dot-product attention by torch's kernels, with the layers' masks and biases.

Shapes: B rows, H heads, S positions of queries, P positions of keys, D channels of a head.
Source: arXiv 2108.12409 section 3 (ALiBi).
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

ALIBI_BIAS_MAX = 8.0


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
    window: int | None = None,
    scale: float,
    dropout_prob: float = 0.0,
) -> torch.Tensor:
    """Return softmax(scale * query key^T + mask + bias) value, [B, H, S, D].

    Args:
        query: [B, H, S, D]; `key` and `value` are [B, G, P, D], where G divides H: neighbouring heads share one.
        mask: tensor that is added to the scores, or boolean tensor that is True for visible keys; broadcasts to [B, H,
            S, P].
        bias: tensor that is added to the scores, [H, S, P].
        window: number of positions that a query sees, its own and earlier positions; None for all.
    """
    if key.shape[1] != query.shape[1]:
        num_sharing = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(num_sharing, 1), value.repeat_interleave(num_sharing, 1)
    merged = _merge_masks(query, key, mask, bias, is_causal=is_causal, window=window)
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=merged,
        dropout_p=dropout_prob,
        is_causal=is_causal and merged is None,
        scale=scale,
    )


def mask_of_scores(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """Return a mask for `attend` with four dimensions, or None, from a mask as scripts and models give it.

    Args:
        mask: None; a mask for `attend`, of which two dimensions are [S, P] as for torch's scaled_dot_product_attention;
            or a mask of padding [B, P] of integers or booleans, 0 for keys that are hidden, as tokenizers make it.
        query: [B, H, S, D]; `key` is [B, G, P, D].

    Raises: ValueError for a mask that does not fit, or fits as mask of scores and as mask of padding.
    """
    if mask is None:
        return None
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    of_padding, of_scores = (shape[0], shape[3]), (shape[2], shape[3])
    is_bool = mask.dtype == torch.bool
    if mask.shape == of_padding and not mask.is_floating_point():
        if is_bool and of_padding == of_scores and shape[0] > 1:
            raise ValueError(
                f"attn_mask of shape {tuple(mask.shape)} may hide keys of each row or of each query: give it four "
                "dimensions, mask[:, None, None, :] for padding, or mask[None, None] for queries and keys"
            )
        return (mask != 0)[:, None, None, :]
    fits = mask.dim() <= len(shape) and all(
        own in (1, length) for own, length in zip(reversed(mask.shape), reversed(shape), strict=False)
    )
    if not fits or not (is_bool or mask.is_floating_point()):
        raise ValueError(
            f"attn_mask has shape {tuple(mask.shape)} and dtype {mask.dtype}; expected a tensor that broadcasts to the "
            f"scores {shape}, of floats that are added or of booleans that are True for visible keys, or a tensor "
            f"{of_padding} of integers that are 0 for padding"
        )
    return mask[(None,) * (len(shape) - mask.dim())]


def alibi_slopes(num_heads: int, bias_max: float) -> torch.Tensor:
    """Return every head's slope of scores over distance, [H]: a geometric sequence down to 2^-bias_max.

    If the number of heads is not a power of two, the first heads have the slopes of the next lower power, the other
    heads every second slope of the next higher power, as in the authors' program.
    """
    below = 2 ** math.floor(math.log2(num_heads))
    slopes = _geometric(below, bias_max)
    if below < num_heads:
        slopes = torch.cat((slopes, _geometric(2 * below, bias_max)[::2][: num_heads - below]))
    return slopes


def alibi_bias(slopes: torch.Tensor, num_queries: int, num_keys: int) -> torch.Tensor:
    """Return the bias of scores, [H, S, P]: -slope * distance.

    Args:
        slopes: [H], see `alibi_slopes`.
        num_queries: S; number of queries, at the positions from 0 on.
        num_keys: P; number of keys, at the positions from 0 on.
    """
    queries = torch.arange(num_queries, device=slopes.device).unsqueeze(1)
    keys = torch.arange(num_keys, device=slopes.device)
    return -slopes[:, None, None] * (queries - keys).abs()


def _geometric(num_heads: int, bias_max: float) -> torch.Tensor:
    return 2.0 ** (-bias_max * torch.arange(1, num_heads + 1) / num_heads)


def _merge_masks(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    is_causal: bool,
    window: int | None,
) -> torch.Tensor | None:
    """Combine masks and bias into one additive mask; None if torch's own causal mask suffices.

    Masked scores are the lowest value of the dtype instead of minus infinity, which would turn a row with all keys
    masked, such as padding, into NaN.
    """
    if mask is None and bias is None and window is None:
        return None
    least = torch.finfo(query.dtype).min
    merged = query.new_zeros(())
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, least)
        merged = mask.to(query.dtype).clamp(
            min=least
        )  # in this order: the lowest value may not exist in the mask's dtype
    if bias is not None:
        merged = (merged + bias.to(query.dtype)).clamp(min=least)
    if is_causal or window is not None:
        distance = torch.arange(query.shape[2], device=query.device).unsqueeze(1) - torch.arange(
            key.shape[2], device=query.device
        )
        is_hidden = (distance < 0) if is_causal else torch.zeros_like(distance, dtype=torch.bool)
        if window is not None:
            is_hidden = is_hidden | (distance >= window)
        merged = torch.where(is_hidden, least, merged)
    return merged
