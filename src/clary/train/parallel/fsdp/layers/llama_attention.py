"""Llama's attention as a module with which scripts replace the model's own attention before `transform`.

[Note: results] Decoder layers of transformers before 4.48 unpack three results, later ones two, and both give the same
arguments since 4.46. The annotations of their attentions do not tell which, so the decoder layer's byte code is read.
[Note: masks] For a model without a cache, transformers 4.46 makes masks with one key more than there are, which its own
attention cuts off.
Source: SageMaker developer guide, "FlashAttention" of SMP v2; the calls are those of transformers' decoder layers.
"""

from __future__ import annotations

import dis
import importlib
import inspect
from typing import Any

import torch
from torch import nn

from clary.train.parallel.caches import given_cache
from clary.train.parallel.tensor.flash import attend, mask_of_scores
from clary.train.parallel.tensor.rotary import Rotary

_BASE = 10000.0  # default base of rotary wavelengths
_DIMENSIONS = 4  # of a mask with rows, heads, queries and keys


class LlamaFlashAttention(nn.Module):
    """Causal attention with grouped heads; parameters have the names of `LlamaAttention`.

    Args:
        config: a LlamaConfig of transformers.

    Raises: ValueError if the configuration cuts its matrices by `pretraining_tp`.
    """

    def __init__(self, config: Any, layer_idx: int | None = None) -> None:
        super().__init__()
        if getattr(config, "pretraining_tp", 1) != 1:
            raise ValueError(f"LlamaFlashAttention: config.pretraining_tp is {config.pretraining_tp}; set it to 1")
        self.config, self.layer_idx = config, layer_idx
        self._num_results = _unpacked_by_model(config)  # None for a config that is not of transformers
        heads = config.num_attention_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        width = (getattr(config, "num_key_value_heads", None) or heads) * self.head_dim
        has_bias = bool(getattr(config, "attention_bias", False))
        self.q_proj = nn.Linear(config.hidden_size, heads * self.head_dim, bias=has_bias)
        self.k_proj = nn.Linear(config.hidden_size, width, bias=has_bias)
        self.v_proj = nn.Linear(config.hidden_size, width, bias=has_bias)
        self.o_proj = nn.Linear(heads * self.head_dim, config.hidden_size, bias=has_bias)
        self.attention_dropout = float(getattr(config, "attention_dropout", 0.0))

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_value: Any = None,
        output_attentions: bool = False,
        use_cache: bool = False,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **others: Any,
    ) -> tuple[Any, ...]:
        """Return hidden states [b, s, c], then None for each further result that the decoder layer unpacks.

        Args:
            attention_mask: None or a mask of padding [b, s] for causal attention; else a mask that replaces the causal
                one, [b, 1, s, s]: floats that are added to the scores, or booleans that are True for visible keys. Keys
                beyond the s-th are cut off; see [Note: masks].
            position_embeddings: cosines and sines [b, s, d], as newer versions of transformers pass; if None, they are
                computed from `position_ids`, and a layer of no model of transformers gets a third result.

        Raises: ValueError for a mask that does not fit, or features that are not supported: caches, attention
            probabilities, scaled positions.
        """
        if past_key_value is not None or given_cache(others) is not None or output_attentions:
            raise ValueError(
                "LlamaFlashAttention keeps no cache and returns no probabilities: call the model with use_cache=False "
                "and output_attentions=False"
            )
        del use_cache
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query, key, value = (
            matrix(hidden_states).view(shape).transpose(1, 2) for matrix in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = self._turned(query, key, position_ids, position_embeddings)
        if attention_mask is not None and attention_mask.dim() == _DIMENSIONS:
            attention_mask = attention_mask[..., : key.shape[2]]
        mask = mask_of_scores(attention_mask, query, key)
        found = attend(
            query,
            key,
            value,
            mask=mask,
            is_causal=mask is None or mask.shape[2] == 1,  # such a mask hides the same keys from all queries
            scale=self.head_dim**-0.5,
            dropout_prob=self.attention_dropout if self.training else 0.0,
        )
        output = self.o_proj(found.transpose(1, 2).flatten(2))
        count = self._num_results or (3 if position_embeddings is None else 2)
        return (output, *[None] * (count - 1))

    def _turned(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        position_ids: torch.Tensor | None,
        embeddings: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if embeddings is not None:
            cosines, sines = (one.unsqueeze(1) for one in embeddings)
            return _turn(query, cosines, sines), _turn(key, cosines, sines)
        if getattr(self.config, "rope_scaling", None):
            raise ValueError(
                "LlamaFlashAttention: config.rope_scaling is set, and the model gives no "
                "position_embeddings: use transformers 4.46 or newer, whose models compute them"
            )
        rotary = Rotary(self.head_dim, float(getattr(self.config, "rope_theta", _BASE)))
        if position_ids is None:
            position_ids = torch.arange(query.shape[2], device=query.device)
        return rotary.turn(query, position_ids), rotary.turn(key, position_ids)


def _turn(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, -1)
    return heads * cosines + torch.cat((-second, first), -1) * sines


def _unpacked_by_model(config: Any) -> int | None:
    """Return how many results of an attention the decoder layers of a config's model unpack; see [Note: results].

    Returns: None if the config's class belongs to no module with a decoder layer that has attentions.
    """
    for home in (kind.__module__ for kind in type(config).__mro__ if ".configuration_" in kind.__module__):
        try:
            models = importlib.import_module(home.replace(".configuration_", ".modeling_"))
        except ImportError:  # a config without a model of torch
            continue
        for name, layer in vars(models).items():
            if name.endswith("DecoderLayer") and hasattr(layer, "forward"):
                return _unpacked_in(inspect.unwrap(layer.forward))
    return None


def _unpacked_in(forward: Any) -> int | None:
    is_behind = False
    for one in dis.get_instructions(forward):
        is_behind = is_behind or one.argval == "self_attn"
        if is_behind and one.opname == "UNPACK_SEQUENCE":
            return int(one.argval)
    return None
