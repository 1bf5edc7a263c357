"""The attention block of a transformer, with heads cut over a tensor group.

Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_pytorch_tensor_parallel.rst` for
arguments and shapes. Where the document's reference and its argument list disagree, this module follows the list: head
sizes are `attention_head_size`, and the residual is added whether layer normalisation comes before or after.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch

from clary.train.parallel.tensor.flash import alibi_bias, alibi_slopes, attend
from clary.train.parallel.tensor.layernorm import DEFAULT_EPSILON, hidden_norm
from clary.train.parallel.tensor.linear import ColumnLinear, RowLinear, apply_columns
from clary.train.parallel.tensor.module import DistributedModule
from clary.train.parallel.tensor.parts import drop
from clary.train.parallel.tensor.randomness import own_randomness
from clary.train.parallel.tensor.residual import add_residual
from clary.train.parallel.tensor.settings import ABOUT_POSITIONS, LayerSettings, check_layernorms, read_settings


class DistributedAttentionLayer(DistributedModule):
    """Self- or cross-attention, a projection, dropout, the residual, and layer normalisation before or after.

    Sizes are those of the whole layer; each of the T ranks holds `num_attention_heads / T` heads, and 1 / T of the
    heads of keys and values, which may be fewer. `more` are fields of `LayerSettings`.

    Raises:
        NotDivisibleError: the tensor group does not divide the heads, or with optimize=memory `hidden_size`.
        ValueError: both layer normalisations are off, cross-attention has position settings, or query heads cannot
            share key and value heads evenly.
        TypeError: an unknown argument.
    """

    is_indivisible = True

    def __init__(
        self,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        layernorm_epsilon: float = DEFAULT_EPSILON,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        cross_attention: bool = False,
        causal_mask_size: int | None = None,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        **more: Any,
    ) -> None:
        super().__init__()
        settings = read_settings(more, type(self).__name__)
        if settings.adds_residual:
            check_layernorms(pre_layernorm=pre_layernorm, post_layernorm=post_layernorm)
        of_positions = [name for name in ABOUT_POSITIONS if cross_attention and getattr(settings, name)]
        if of_positions:
            raise ValueError(
                f"cross-attention takes no {of_positions[0]}: its keys come from a different sequence than "
                "its queries, so their positions cannot be compared"
            )
        group = self.layout.group
        self.num_heads = group.divide(num_attention_heads, "num_attention_heads")
        self.head_size = attention_head_size
        self.attention_dropout_prob, self.hidden_dropout_prob = attention_dropout_prob, hidden_dropout_prob
        self.is_cross, self.causal_mask_size = cross_attention, causal_mask_size
        self.settings = settings
        self.scale = _scale(attention_head_size, settings)
        self.slopes: torch.Tensor | None = None
        if settings.use_alibi:
            self.slopes = alibi_slopes(num_attention_heads, settings.alibi_bias_max).chunk(group.size)[group.rank]
        std = initializer_range if use_normal_initialization else None
        width = num_attention_heads * attention_head_size
        num_shared = settings.num_key_value_heads or num_attention_heads
        self.num_key_value_heads = group.divide(num_shared, "num_key_value_heads")
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads is {num_attention_heads}, which is not a multiple of the {num_shared} "
                "heads of keys and values"
            )
        self.query, self.key, self.value = (
            ColumnLinear(hidden_size, heads * attention_head_size, normal_std=std, bias=settings.use_qkv_bias)
            for heads in (num_attention_heads, num_shared, num_shared)
        )
        self.dense = RowLinear(width, hidden_size, normal_std=std, bias=settings.use_attention_dense_bias)
        is_rms = settings.use_rms_norm
        self.pre_layernorm = hidden_norm(hidden_size, layernorm_epsilon, is_rms=is_rms) if pre_layernorm else None
        self.layernorm = hidden_norm(hidden_size, layernorm_epsilon, is_rms=is_rms) if post_layernorm else None

    def forward(self, inputs: tuple[torch.Tensor | None, ...]) -> torch.Tensor:
        """Return hidden states [N, S, H].

        Args:
            inputs: (hidden_states, attention_mask), or with cross-attention (hidden_states, cross_states,
                attention_mask); positions [N, S] for rotary embeddings may follow, and have no effect otherwise. The
                mask is None, a tensor that is added to the scores, or a boolean tensor that is True for visible keys;
                it broadcasts to [N, heads, S, P].
        """
        hidden, cross, mask, positions = _unpack(inputs, is_cross=self.is_cross)
        layout = self.layout
        dtype = hidden.dtype
        if not self.is_inner:
            num_rows = hidden.shape[0]
            hidden = layout.enter(hidden)
            cross = None if cross is None else layout.enter(cross)
            mask = None if mask is None else layout.enter_rows(mask, num_rows)
            positions = None if positions is None else layout.enter_rows(positions, num_rows)
        normal = hidden if self.pre_layernorm is None else self.pre_layernorm(hidden)
        output = self.dense(self._attend(normal, cross, mask, positions))
        output = drop(output, self.hidden_dropout_prob if self.training else 0.0, layout)
        output = add_residual(output, hidden, self.layernorm, self.settings)
        return output if self.is_inner else layout.leave(output).to(dtype)

    def _attend(
        self,
        hidden: torch.Tensor,
        cross: torch.Tensor | None,
        mask: torch.Tensor | None,
        positions: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the concatenated outputs of this rank's heads, [M, S, H/T]."""
        if cross is None:
            query, key, value = apply_columns(hidden, [self.query, self.key, self.value], self.layout)
        else:
            (query,) = apply_columns(hidden, [self.query], self.layout)
            key, value = apply_columns(cross, [self.key, self.value], self.layout)
        query, key, value = (part.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for part in (query, key, value))
        is_causal = self.causal_mask_size is not None and cross is None
        length = query.shape[2]
        if is_causal and self.causal_mask_size is not None and length > self.causal_mask_size:
            raise ValueError(f"a sequence has {length} positions; causal_mask_size is {self.causal_mask_size}")
        if self.settings.rotary is not None:
            if positions is None:
                positions = torch.arange(length, device=query.device)
            query, key = (self.settings.rotary.turn(part, positions) for part in (query, key))
        dropout_prob = self.attention_dropout_prob if self.training else 0.0
        bias = None
        if self.slopes is not None:
            bias = alibi_bias(self.slopes.to(query.device), length, key.shape[2])
        with own_randomness(self.layout.group, query.device) if dropout_prob else nullcontext():
            heads = attend(
                query,
                key,
                value,
                mask=mask,
                bias=bias,
                is_causal=is_causal,
                window=self.settings.attention_window,
                scale=self.scale,
                dropout_prob=dropout_prob,
            )
        return heads.transpose(1, 2).flatten(2)


def _scale(head_size: int, settings: LayerSettings) -> float:
    scale = 1 / math.sqrt(head_size) if settings.scale_attention_scores else 1.0
    return scale / (settings.layer_idx + 1) if settings.scale_attn_by_layer_idx else scale


def _unpack(
    inputs: tuple[torch.Tensor | None, ...], *, is_cross: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Return hidden states, cross states, mask and positions."""
    expected = 3 if is_cross else 2
    if len(inputs) not in (expected, expected + 1) or inputs[0] is None or (is_cross and inputs[1] is None):
        names = "(hidden_states, cross_states, attention_mask)" if is_cross else "(hidden_states, attention_mask)"
        raise ValueError(f"DistributedAttentionLayer takes a tuple {names}; got {len(inputs)} values")
    hidden, *rest = inputs
    cross = rest.pop(0) if is_cross else None
    return hidden, cross, rest[0], rest[1] if len(rest) > 1 else None
