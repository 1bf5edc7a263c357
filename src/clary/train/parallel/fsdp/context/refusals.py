"""Refusals of attention that differs from causal softmax attention, which is all that parts of sequences support.

Where: `spreading` asks before training, as far as configurations show it; `interception` and `flash_calls` ask in
every call.

[Note: tensors] A caller may pass on keywords of the whole model, most of which do not change attention. An unknown
tensor may be a bias, sinks, chosen keys or the bounds of packed sequences, so it is refused; `_HARMLESS` lists the
known tensors that change nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

_ADDED = {
    "softcap": "a softcap of scores",
    "s_aux": "attention sinks",
    "position_bias": "a bias of scores",
    "head_mask": "a mask of heads",
}
_HARMLESS = {
    "position_ids",
    "cache_position",
    "position_embeddings",
    "num_items_in_batch",
    "shift_labels",
    "token_type_ids",  # models that read them for attention have bidirectional attention, which is refused
}
_CAUSAL_KINDS = {"full_attention", "sliding_attention", "attention"}
_OTHER_KINDS = {"dense", "sparse", "moe"}  # kinds of layers that say nothing about attention


def refuse_modules(attentions: Iterable[nn.Module]) -> None:
    """Check attention modules and their configurations.

    Raises: ValueError naming a class, what it computes that parts of sequences do not support, and what to do.
    """
    for attention in attentions:
        found = [*_of_module(attention), *_of_configuration(getattr(attention, "config", None))]
        if found:
            raise ValueError(
                f"context_parallel_degree: {type(attention).__name__} has {' and '.join(found)}; expected causal "
                "softmax attention, with a sliding window or without: set context_parallel_degree to 1, or change the "
                "model's configuration"
            )


def refuse_call(caller: str, named: Mapping[str, Any], others: Mapping[str, Any], *, is_causal: bool) -> None:
    """Check the arguments of one call of attention; see [Note: tensors].

    Args:
        caller: class or function that the error names.
        named: `softcap`, `s_aux`, `position_bias`, `head_mask`, as far as the caller knows them; None and 0 are unset.
        others: keywords that attention over parts does not use.
        is_causal: whether a query sees its own and earlier positions alone.

    Raises: ValueError naming everything that is set and not supported.
    """
    found = [] if is_causal else ["attention that is not causal"]
    for name, value in named.items():
        if isinstance(value, torch.Tensor) or value:
            found.append(f"{_ADDED[name]} ({name}{'' if isinstance(value, torch.Tensor) else f' = {value!r}'})")
    found += [f"a tensor {name}" for name, value in others.items() if name not in _HARMLESS and _holds_tensor(value)]
    if found:
        raise ValueError(
            f"context parallelism: {caller} asked for {' and '.join(found)}; expected causal softmax attention "
            "without these, which alone is supported for parts of sequences: set context_parallel_degree to 1, or "
            "change the model's configuration"
        )


def _of_module(attention: nn.Module) -> list[str]:
    found = []
    if getattr(attention, "is_causal", True) is False:
        found.append("attention that is not causal (is_causal = False)")
    sinks = [name for name, value in attention._parameters.items() if "sink" in name and value is not None]
    if sinks:
        found.append(f"attention sinks ({', '.join(sinks)})")
    return found


def _of_configuration(configuration: Any) -> list[str]:
    found = []
    softcap = getattr(configuration, "attn_logit_softcapping", None)
    if softcap:
        found.append(f"a softcap of scores (attn_logit_softcapping = {softcap})")
    both_ways = getattr(configuration, "use_bidirectional_attention", None)
    if both_ways:
        found.append(f"attention that is not causal (use_bidirectional_attention = {both_ways!r})")
    kinds = getattr(configuration, "layer_types", None)
    if isinstance(kinds, list | tuple):
        odd = sorted({str(one) for one in kinds} - _CAUSAL_KINDS - _OTHER_KINDS)
        if odd:
            found.append(f"layers of {', '.join(odd)} (layer_types)")
    elif getattr(configuration, "attention_chunk_size", None):
        found.append(f"chunks of attention (attention_chunk_size = {configuration.attention_chunk_size})")
    return found


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_tensor(one) for one in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_tensor(one) for one in value)
    return isinstance(value, torch.Tensor)
