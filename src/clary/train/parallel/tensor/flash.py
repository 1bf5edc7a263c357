"""Scaled dot-product attention, by torch's own kernels, with the masks and biases that the layers know.

Shapes: B rows, H heads, S positions of queries, P positions of keys, D channels of a head.
Source: arXiv 2108.12409 section 3 (ALiBi).
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

ALIBI_BIAS_MAX = 8.0


class FlashAttentionLayer(nn.Module):
    """Attention over packed queries, keys and values.

    Args:
        attention_dropout_prob: of attention probabilities, in training.
        attention_head_size: D; None takes it from the input.
        scale_attention_scores: whether scores are divided by sqrt(D).
        scale_attn_by_layer_idx: whether they are divided by `layer_idx + 1` as well.
        scale: the factor of the scores itself, in place of both.
        triton_flash_attention: without effect: torch chooses the kernel.
        use_alibi: whether scores fall with the distance, more steeply in earlier heads.

    Raises: ValueError if `scale_attn_by_layer_idx` is without `layer_idx`.
    """

    def __init__(
        self,
        attention_dropout_prob: float = 0.1,
        attention_head_size: int | None = None,
        scale_attention_scores: bool = True,
        scale_attn_by_layer_idx: bool = False,
        layer_idx: int | None = None,
        scale: float | None = None,
        triton_flash_attention: bool = False,
        use_alibi: bool = False,
    ) -> None:
        super().__init__()
        if scale_attn_by_layer_idx and layer_idx is None:
            raise ValueError("scale_attn_by_layer_idx is set, so layer_idx must say which layer this is, from 0")
        self.attention_dropout_prob, self.attention_head_size = attention_dropout_prob, attention_head_size
        self.scale_attention_scores, self.scale, self.use_alibi = scale_attention_scores, scale, use_alibi
        self.divisor = layer_idx + 1 if scale_attn_by_layer_idx and layer_idx is not None else 1
        self.triton_flash_attention = triton_flash_attention

    def forward(self, qkv: torch.Tensor, attn_mask: torch.Tensor | None = None, causal: bool = False) -> torch.Tensor:
        """Return [B, H, S, D].

        Args:
            qkv: [B, S, 3, H, D].
            attn_mask: added to the scores, or boolean, True where a key counts; it broadcasts to [B, H, S, S].
            causal: whether later positions are masked.
        """
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        size = self.attention_head_size or query.shape[-1]
        scale = self.scale
        if scale is None:
            scale = (1 / math.sqrt(size) if self.scale_attention_scores else 1.0) / self.divisor
        bias = None
        if self.use_alibi:
            slopes = alibi_slopes(query.shape[1], ALIBI_BIAS_MAX).to(query.device)
            bias = alibi_bias(slopes, query.shape[2], key.shape[2])
        return attend(
            query,
            key,
            value,
            mask=attn_mask,
            bias=bias,
            is_causal=causal,
            scale=scale,
            dropout_prob=self.attention_dropout_prob if self.training else 0.0,
        )


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
        query: [B, H, S, D]; `key` and `value` are [B, H, P, D].
        mask: added to the scores, or boolean, True where a key counts; it broadcasts to [B, H, S, P].
        bias: added to the scores, [H, S, P].
        window: how many positions a query sees, itself and those before; None for all.
    """
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


def alibi_slopes(num_heads: int, bias_max: float) -> torch.Tensor:
    """Return how steeply scores fall with the distance in every head, [H]: a geometric sequence down to 2^-bias_max.

    Of a number of heads that is no power of two, the first heads have the slopes of the power below, the others every
    second one of the power above, as in the authors' own program.
    """
    below = 2 ** math.floor(math.log2(num_heads))
    slopes = _geometric(below, bias_max)
    if below < num_heads:
        slopes = torch.cat((slopes, _geometric(2 * below, bias_max)[::2][: num_heads - below]))
    return slopes


def alibi_bias(slopes: torch.Tensor, num_queries: int, num_keys: int) -> torch.Tensor:
    """Return what is added to scores, [H, S, P]: minus slope times distance."""
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
    """Return one mask to add; None where torch's own causal mask says it all.

    Masked scores are the least number of the dtype, not minus infinity: a row in which every key is masked, such as one
    of padding, would become NaN.
    """
    if mask is None and bias is None and window is None:
        return None
    least = torch.finfo(query.dtype).min
    merged = query.new_zeros(())
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, least)
        merged = mask.clamp(min=least).to(query.dtype)
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
