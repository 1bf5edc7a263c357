"""Attention of the package flash_attn, computed by torch's own `scaled_dot_product_attention`.

Where: `stand_ins` lets scripts in rehearsals import this module under the package's names. B is the batch, S a
sequence, H the number of heads, D the size of a head; keys and values may have fewer heads.
Source: the documentation of flash_attn, its first and its second version.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention


def flash_attn_func(
    q_BSHD: torch.Tensor,
    k_BSHD: torch.Tensor,
    v_BSHD: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    **more: Any,
) -> torch.Tensor:
    """Return attention, shaped as the queries.

    Args:
        q_BSHD: queries; `k_BSHD` and `v_BSHD` may have another S, and fewer heads, whose number divides H.
        dropout_p: probability that a weight is dropped; 0 outside of training.
        softmax_scale: factor of the scores; None stands for 1 / sqrt(D).
        causal: whether each query sees only keys up to its own position; the last query is aligned with the last key.
        more: other arguments of flash_attn; each may be None or False, and any other value is refused.

    Raises: NotImplementedError for an argument that would change the result.
    """
    _refuse("flash_attn_func", more)
    queries, keys, values = (one.transpose(1, 2) for one in (q_BSHD, k_BSHD, v_BSHD))
    times = queries.shape[1] // keys.shape[1]
    keys, values = (one.repeat_interleave(times, dim=1) for one in (keys, values))
    mask = None
    if causal:  # the last query is aligned with the last key, for any lengths
        shape = (queries.shape[2], keys.shape[2])
        mask = torch.ones(shape, dtype=torch.bool, device=queries.device).tril(shape[1] - shape[0])
    given = {"attn_mask": mask, "dropout_p": dropout_p, "scale": softmax_scale}
    return scaled_dot_product_attention(queries, keys, values, **given).transpose(1, 2)


class FlashAttention(torch.nn.Module):
    """The module of flash_attn's first version: queries, keys and values in one tensor."""

    def __init__(self, softmax_scale: float | None = None, attention_dropout: float = 0.0, **more: Any) -> None:
        super().__init__()
        self.softmax_scale, self.dropout_p = softmax_scale, attention_dropout

    def forward(self, qkv_BS3HD: torch.Tensor, *arguments: Any, causal: bool = False, **more: Any) -> Any:
        """Return attention of shape [B, S, H, D], and None for its weights.

        Raises: NotImplementedError for an argument that would change the result.
        """
        _refuse("FlashAttention", {"key_padding_mask": next(iter(arguments), None), **more})
        dropout = self.dropout_p if self.training else 0.0
        queries, keys, values = qkv_BS3HD.unbind(2)
        return flash_attn_func(queries, keys, values, dropout, self.softmax_scale, causal), None


def _refuse(name: str, given: dict[str, Any]) -> None:
    asked = sorted(word for word, value in given.items() if value is not None and value is not False)
    if asked:
        raise NotImplementedError(
            f"{name} was given {', '.join(asked)}, which rehearsals on the CPU do not support; leave it "
            "out for the rehearsal, or run the script on a GPU"
        )
