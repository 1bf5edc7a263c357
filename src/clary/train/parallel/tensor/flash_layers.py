"""Attention over queries, keys and values in any order of their dimensions, by torch's own kernels.

[Note: layouts] A layout names the dimensions of each tensor, as "b h s d" does: b rows, h heads, s positions, d
channels. One tensor that packs several has one dimension more, which the layout may name by their number, as in
"b s 3 h d"; where it does not, the only dimension of that length is it.
Source: SageMaker developer guide, "SageMaker model parallel library v2 reference", `torch.sagemaker.nn.attn`.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import nn

from clary.train.parallel.tensor.flash import ALIBI_BIAS_MAX, alibi_bias, alibi_slopes, attend

Heads: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]


class FlashSelfAttention(nn.Module):
    """Attention in which queries, keys and values have the same heads.

    Args:
        attention_dropout_prob: of attention probabilities, in training.
        scale: of the scores; None is 1 / sqrt(channels).
        triton_flash_attention: without effect but that `attn_mask` is taken, as in the original: torch chooses the
            kernel.
        use_alibi: whether scores fall with the distance, more steeply in earlier heads.
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
            attn_mask: added to the scores; it broadcasts to [b, h, s, s]. With `triton_flash_attention` and `use_alibi`
                only, and then it holds the bias of ALiBi itself.
            cast_dtype: in which attention is computed and returned; None is that of the tensors.

        Raises: ValueError for a layout that is none, or a mask where none is taken.
        """
        if attn_mask is not None and not (self.triton_flash_attention and self.use_alibi):
            raise ValueError(
                "FlashSelfAttention takes attn_mask with triton_flash_attention=True and use_alibi=True only; leave it "
                "out, or take torch.nn.functional.scaled_dot_product_attention"
            )
        query, key, value = heads_of(qkv, 3, layout, cast_dtype)
        bias = None
        if self.use_alibi and attn_mask is None:
            slopes = alibi_slopes(query.shape[1], ALIBI_BIAS_MAX).to(query.device)
            bias = alibi_bias(slopes, query.shape[2], key.shape[2])
        return attend(
            query,
            key,
            value,
            mask=attn_mask,
            bias=bias,
            is_causal=causal,
            scale=1 / math.sqrt(query.shape[-1]) if self.scale is None else self.scale,
            dropout_prob=self.attention_dropout_prob if self.training else 0.0,
        )


class FlashGroupedQueryAttention(nn.Module):
    """Attention in which several heads of queries share one of keys and values.

    Args:
        attention_dropout_prob: of attention probabilities, in training.
        scale: of the scores; None is 1 / sqrt(channels).
    """

    def __init__(self, attention_dropout_prob: float = 0.0, scale: float | None = None) -> None:
        super().__init__()
        self.attention_dropout_prob, self.scale = attention_dropout_prob, scale

    def forward(
        self,
        q: torch.Tensor,
        kv: Heads,
        causal: bool = False,
        cast_dtype: torch.dtype | None = None,
        layout: str = "b s h d",
    ) -> torch.Tensor:
        """Return [b, h, s, d], h the heads of queries.

        Args:
            kv: two tensors, or one that packs them; see [Note: layouts].
            cast_dtype: as of `FlashSelfAttention`.

        Raises: ValueError for a layout that is none, or heads of queries that are no multiple of the others.
        """
        plain = " ".join(name for name in layout.split() if not name.isdigit())
        (query,) = heads_of((q,), 1, plain, cast_dtype)
        key, value = heads_of(kv, 2, layout, cast_dtype)
        if query.shape[1] % key.shape[1]:
            raise ValueError(
                f"{query.shape[1]} heads of queries are no multiple of {key.shape[1]} heads of keys and values"
            )
        num_sharing = query.shape[1] // key.shape[1]
        return attend(
            query,
            key.repeat_interleave(num_sharing, 1),
            value.repeat_interleave(num_sharing, 1),
            mask=None,
            is_causal=causal,
            scale=1 / math.sqrt(query.shape[-1]) if self.scale is None else self.scale,
            dropout_prob=self.attention_dropout_prob if self.training else 0.0,
        )


def heads_of(given: Heads, number: int, layout: str, dtype: torch.dtype | None) -> list[torch.Tensor]:
    """Return `number` tensors [b, h, s, d] of those, or of the one that packs them; see [Note: layouts].

    Raises: ValueError if layout and tensors do not fit.
    """
    names = layout.split()
    tensors = [given] if isinstance(given, torch.Tensor) else list(given)
    is_packed = isinstance(given, torch.Tensor)
    plain = [name for name in names if name != str(number)]
    if sorted(plain) != sorted("bhsd"):
        raise ValueError(f'layout is {layout!r}; expected b, h, s and d in some order, such as "b h s d"')
    if is_packed:
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
