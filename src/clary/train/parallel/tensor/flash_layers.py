"""Attention layers over queries, keys and values with any order of dimensions, for `smp.nn` and `tsm.nn`.

[Note: layouts] A layout names the dimensions of each tensor, as "b h s d" does: b rows, h heads, s positions, d
channels. A tensor that packs several tensors has one of two forms. With one more dimension, the layout may name that
dimension by the number of tensors, as in "b s 3 h d"; otherwise it is the only dimension of that length. With the
layout's four dimensions, the heads of the tensors follow each other: 3 * h heads are those of queries, then of keys,
then of values.
Source: SageMaker developer guide, "SageMaker model parallel library v2 reference", `torch.sagemaker.nn.attn`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import nn

from clary.train.parallel.tensor.flash import ALIBI_BIAS_MAX, alibi_bias, alibi_slopes, attend, mask_of_scores

Heads: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]


class FlashLayer(nn.Module):
    """Base class: attention with the settings that all these layers share.

    Args:
        attention_dropout_prob: dropout of attention probabilities, in training.
        scale: factor of the scores; None is 1 / sqrt(channels).
        triton_flash_attention: without effect on results: torch chooses the kernel.
        use_alibi: whether scores decrease with the distance (ALiBi), in each head by another slope.
    """

    def __init__(
        self,
        attention_dropout_prob: float = 0.0,
        scale: float | None = None,
        triton_flash_attention: bool = False,
        use_alibi: bool = False,
    ) -> None:
        super().__init__()
        self.attention_dropout_prob, self.scale = attention_dropout_prob, scale
        self.triton_flash_attention, self.use_alibi = triton_flash_attention, use_alibi

    def attend(
        self,
        heads: Sequence[torch.Tensor],
        mask: torch.Tensor | None,
        *,
        is_causal: bool,
        scale: float | None = None,
        has_bias: bool = False,
    ) -> torch.Tensor:
        """Return [b, h, s, d] for queries, keys and values with dimensions in that order.

        Args:
            mask: as in `flash.attend`.
            scale: factor of the scores, in place of the layer's own.
            has_bias: whether the mask includes the bias of ALiBi.
        """
        query, key, value = heads
        bias = None
        if self.use_alibi and not has_bias:
            slopes = alibi_slopes(query.shape[1], ALIBI_BIAS_MAX).to(query.device)
            bias = alibi_bias(slopes, query.shape[2], key.shape[2])
        scale = self.scale if scale is None else scale
        return attend(
            query,
            key,
            value,
            mask=mask,
            bias=bias,
            is_causal=is_causal,
            scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
            dropout_prob=self.attention_dropout_prob if self.training else 0.0,
        )


class FlashSelfAttention(FlashLayer):
    """Attention in which queries, keys and values have the same heads."""

    def forward(
        self,
        qkv: Heads,
        attn_mask: torch.Tensor | None = None,
        causal: bool = False,
        cast_dtype: torch.dtype | None = None,
        layout: str = "b h s d",
    ) -> torch.Tensor:
        """Return [b, h, s, d].

        Args:
            qkv: three tensors, or one that packs them; see [Note: layouts].
            attn_mask: tensor that is added to the scores; broadcasts to [b, h, s, s]. Accepted only with
                `triton_flash_attention` and `use_alibi`, and must include the bias of ALiBi.
            cast_dtype: dtype of the computation and the result; None is the dtype of the tensors.

        Raises: ValueError for an invalid layout, or for a mask without these settings.
        """
        if attn_mask is not None and not (self.triton_flash_attention and self.use_alibi):
            raise ValueError(
                "FlashSelfAttention takes attn_mask with triton_flash_attention=True and use_alibi=True only; leave it "
                "out, or take torch.nn.functional.scaled_dot_product_attention"
            )
        heads = heads_of(qkv, 3, layout, cast_dtype)
        return self.attend(heads, attn_mask, is_causal=causal, has_bias=attn_mask is not None)


class FlashGroupedQueryAttention(FlashLayer):
    """Attention in which several query heads share one head of keys and values.

    Args:
        attention_dropout_prob: dropout of attention probabilities, in training.
        scale: factor of the scores; None is 1 / sqrt(channels).
    """

    def __init__(self, attention_dropout_prob: float = 0.0, scale: float | None = None) -> None:
        super().__init__(attention_dropout_prob, scale)

    def forward(
        self,
        q: torch.Tensor,
        kv: Heads,
        causal: bool = False,
        cast_dtype: torch.dtype | None = None,
        layout: str = "b s h d",
        attn_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return [b, h, s, d], h the heads of queries.

        Args:
            kv: two tensors, or one that packs them; see [Note: layouts].
            causal: whether later positions are masked, in addition to `attn_mask`.
            cast_dtype: as in `FlashSelfAttention.forward`.
            attn_mask: mask of scores, or mask of padding [b, s of keys]; see `flash.mask_of_scores`.

        Raises: ValueError for an invalid layout, for a mask that does not fit, or if the number of query heads is not a
            multiple of the number of key heads.
        """
        plain = " ".join(name for name in layout.split() if not name.isdigit())
        (query,) = heads_of((q,), 1, plain, cast_dtype)
        key, value = heads_of(kv, 2, layout, cast_dtype)
        if query.shape[1] % key.shape[1]:
            raise ValueError(
                f"{query.shape[1]} heads of queries are not a multiple of {key.shape[1]} heads of keys and values"
            )
        return self.attend((query, key, value), mask_of_scores(attn_mask, query, key), is_causal=causal)


class FlashAttentionLayer(FlashLayer):
    """Attention over packed queries, keys and values.

    Args:
        attention_dropout_prob: dropout of attention probabilities, in training.
        attention_head_size: D; None reads it from the input.
        scale_attention_scores: whether scores are divided by sqrt(D).
        scale_attn_by_layer_idx: whether scores are also divided by `layer_idx + 1`.
        scale: factor of the scores, in place of both divisors.
        triton_flash_attention: without effect: torch chooses the kernel.
        use_alibi: whether scores decrease with the distance (ALiBi), in each head by another slope.

    Raises: ValueError for `scale_attn_by_layer_idx` without `layer_idx`.
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
        super().__init__(attention_dropout_prob, scale, triton_flash_attention, use_alibi)
        if scale_attn_by_layer_idx and layer_idx is None:
            raise ValueError("scale_attn_by_layer_idx is set, so layer_idx must say which layer this is, from 0")
        self.attention_head_size, self.scale_attention_scores = attention_head_size, scale_attention_scores
        self.divisor = layer_idx + 1 if scale_attn_by_layer_idx and layer_idx is not None else 1

    def forward(self, qkv: torch.Tensor, attn_mask: torch.Tensor | None = None, causal: bool = False) -> torch.Tensor:
        """Return [B, H, S, D].

        Args:
            qkv: [B, S, 3, H, D].
            attn_mask: tensor that is added to the scores, or boolean tensor that is True for visible keys; broadcasts
                to [B, H, S, S].
            causal: whether later positions are masked.
        """
        heads = [part.transpose(1, 2) for part in qkv.unbind(2)]
        scale = self.scale
        if scale is None:
            size = self.attention_head_size or heads[0].shape[-1]
            scale = (1 / math.sqrt(size) if self.scale_attention_scores else 1.0) / self.divisor
        return self.attend(heads, attn_mask, is_causal=causal, scale=scale)


def heads_of(given: Heads, number: int, layout: str, dtype: torch.dtype | None) -> list[torch.Tensor]:
    """Return `number` tensors [b, h, s, d] from separate tensors or a packed one; see [Note: layouts].

    Args:
        given: a sequence of tensors, each in the layout, or the tensor that packs them.
        layout: names of dimensions with spaces between, such as "b s h d".
        dtype: dtype of the results; None keeps each tensor's dtype.

    Raises: ValueError if the tensors do not fit the layout.
    """
    names = layout.split()
    tensors = [given] if isinstance(given, torch.Tensor) else list(given)
    is_packed = isinstance(given, torch.Tensor)
    plain = [name for name in names if name != str(number)]
    if sorted(plain) != sorted("bhsd"):
        raise ValueError(f'layout is {layout!r}; expected b, h, s and d in some order, such as "b h s d"')
    if is_packed and tensors[0].dim() == len(names) == len(plain):
        heads = tensors[0].shape[plain.index("h")]
        if heads % number:
            raise ValueError(
                f"a tensor of shape {tuple(tensors[0].shape)} in layout {layout!r} has {heads} heads; expected a "
                f"multiple of {number}, the heads of {number} tensors one after the other, or {number} separate tensors"
            )
        tensors = list(tensors[0].chunk(number, plain.index("h")))
    elif is_packed:
        whole = tensors[0]
        at = names.index(str(number)) if str(number) in names else _only_dimension(whole, number, layout)
        if whole.dim() != len(plain) + 1 or whole.shape[at] != number:
            raise ValueError(
                f"a tensor of shape {tuple(whole.shape)} does not pack {number} tensors in layout {layout!r}"
            )
        tensors = list(whole.unbind(at))
    if len(tensors) != number or any(one.dim() != len(plain) for one in tensors):
        raise ValueError(
            f"expected {number} tensors of {len(plain)} dimensions in layout {layout!r}; got shapes "
            f"{[tuple(one.shape) for one in tensors]}"
        )
    order = [plain.index(name) for name in "bhsd"]
    return [one.permute(order).to(dtype or one.dtype) for one in tensors]


def _only_dimension(whole: torch.Tensor, number: int, layout: str) -> int:
    found = [at for at, length in enumerate(whole.shape) if length == number]
    if len(found) != 1:
        raise ValueError(
            f"which dimension of shape {tuple(whole.shape)} packs {number} tensors is not clear: say it in the layout, "
            f'as in "b s {number} h d"; got {layout!r}'
        )
    return found[0]
