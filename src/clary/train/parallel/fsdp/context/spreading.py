"""Conversion of a model to work on its rank's part of each sequence.

[Note: structure] Supported models have attention in modules with Attention in the names of their classes, and with
children `q_proj`, `k_proj` and `v_proj`, or `query_key_value`: the Llama, Mistral, Mixtral and GPT-NeoX models of
transformers 4.37 and newer, and models written like them. The model takes `input_ids` (or `inputs_embeds`) and
`position_ids`. If it takes `labels`, it returns the loss as the first output, or as `loss`, next to `logits`.

[Note: masks] A mask may mark all tokens as valid, which changes nothing. Padding at the end of sequences needs no mask:
no token sees later tokens, and labels of -100 exclude padding from the loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from clary.train.parallel.caches import given_cache
from clary.train.parallel.fsdp.context.batches import next_labels, part_loss
from clary.train.parallel.fsdp.context.interception import (
    COMMUNICATIONS,
    INTERFACE_NAME,
    Context,
    hands_window_over,
    interface_of,
    put_in,
)
from clary.train.parallel.fsdp.context.layout import positions_of
from clary.train.parallel.fsdp.context.refusals import refuse_modules
from clary.train.parallel.fsdp.context.rotary import lengthen
from clary.train.parallel.tensor.collectives import TensorGroup

_NAME = "Attention"
_PROJECTIONS = ({"q_proj", "k_proj", "v_proj"}, {"query_key_value"})


def spread_sequences(model: nn.Module, group: TensorGroup, communication: str = "p2p") -> nn.Module:
    """Change a model in place to take parts of sequences, and return it; see [Note: structure].

    Scripts give each rank its part of tokens and of labels (not shifted), cut as in `layout`. The model computes
    positions and next labels itself; loss and gradients, averaged over the group, equal those of whole sequences. Every
    rank of the group calls the model at the same time, with parts of one shape.

    Args:
        communication: "p2p" passes keys and values around, and holds those of at most three ranks at once; "all_gather"
            holds those of all ranks.

    Raises: ValueError if the model is not supported, or `communication` has another value; the model is unchanged then.
    """
    if communication not in COMMUNICATIONS:
        raise ValueError(f"cp_comm_type is {communication!r}; expected one of {', '.join(COMMUNICATIONS)}")
    attentions = list(_attentions(model))
    if not attentions:
        raise ValueError(
            f"context_parallel_degree is {group.size}: {type(model).__name__} has no module named ...{_NAME}... with "
            "q_proj, k_proj and v_proj, or query_key_value; set it to 1"
        )
    signature = inspect.signature(model.forward)
    missing = {"input_ids", "position_ids"} - set(signature.parameters)
    if missing:
        raise ValueError(
            f"context_parallel_degree is {group.size}: forward of {type(model).__name__} takes no "
            f"{' and no '.join(sorted(missing))}, which it needs to know where this rank's part of a "
            "sequence lies"
        )
    refuse_modules(attentions)
    for attention in attentions:
        window = getattr(getattr(attention, "config", None), "sliding_window", None)
        if window is not None and not hands_window_over(attention):
            raise ValueError(
                f"{type(attention).__name__} has a sliding window of {window}, which it does not pass to its "
                "attention function: set sliding_window to None, or use attn_implementation "
                "'flash_attention_2' or transformers 4.48 or newer"
            )
    lengthen(model, group.size)
    context = Context(group, communication)
    for attention in attentions:
        put_in(attention, context)
    if any(interface_of(attention) is not None for attention in attentions):
        configs = {id(one.config): one.config for one in model.modules() if hasattr(one, "config")}
        for config in configs.values():
            config._attn_implementation = INTERFACE_NAME
    hooks = _Hooks(model, group, signature)
    model.register_forward_pre_hook(hooks.before, with_kwargs=True)
    model.register_forward_hook(hooks.after)
    return model


def _attentions(model: nn.Module) -> Iterator[nn.Module]:
    for module in model.modules():
        children = {name for name, _ in module.named_children()}
        if _NAME in type(module).__name__ and any(one <= children for one in _PROJECTIONS):
            yield module


class _Hooks:
    """Hooks around a model's forward pass; called by one thread."""

    def __init__(self, model: nn.Module, group: TensorGroup, signature: inspect.Signature) -> None:
        self._group, self._signature = group, signature
        self._aux_loss_factor = float(getattr(model, "router_aux_loss_coef", 0.0) or 0.0)
        self._labels: torch.Tensor | None = None
        self._num_items: Any = None

    def before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Check the arguments, add positions, and store labels for `after`."""
        bound = self._signature.bind(*args, **kwargs)
        given = bound.arguments
        tokens = given.get("input_ids")
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if tokens is None:
            raise ValueError("context parallelism: the model was called with neither input_ids nor inputs_embeds")
        cache = given_cache(_by_name(bound))
        if cache is not None:
            raise ValueError(
                f"context parallelism: {cache} is given; caches of keys are not supported for parts of sequences"
            )
        _check_mask(given.get("attention_mask"))
        if given.get("attention_mask") is not None:
            given["attention_mask"] = None
        if given.get("position_ids") is None:
            own = positions_of(self._group.rank, self._group.size, tokens.shape[1], tokens.device)
            given["position_ids"] = own.unsqueeze(0).expand(tokens.shape[0], -1)
        self._labels = given.pop("labels", None)
        named = next((one for one in self._signature.parameters.values() if one.kind is one.VAR_KEYWORD), None)
        self._num_items = given.get(named.name, {}).get("num_items_in_batch") if named is not None else None
        return (), _by_name(bound)

    def after(self, model: nn.Module, _: Any, output: Any) -> Any:
        """Put the loss into the output."""
        labels, self._labels = self._labels, None
        if labels is None:
            return None
        logits = output["logits"] if isinstance(output, Mapping) else output[0] if isinstance(output, tuple) else output
        loss = part_loss(logits, next_labels(labels, self._group), self._group, self._num_items)
        if isinstance(output, tuple):
            return (loss, *output)
        if isinstance(output, Mapping):
            if output.get("aux_loss") is not None:
                loss = loss + self._aux_loss_factor * output["aux_loss"].to(loss.device)
            others = {key: value for key, value in output.items() if key != "loss"}
            kind: Any = type(output)
            return kind(loss=loss, **others)
        raise TypeError(
            f"context parallelism: {type(model).__name__} was called with labels and returned a "
            f"{type(output).__name__}; expected a dict, or a tuple that begins with the logits"
        )


def _by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return all arguments by name."""
    named = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(name, {}))
        elif parameter.kind is parameter.VAR_POSITIONAL and named.pop(name, ()):
            raise TypeError(
                "context parallelism: arguments that are not named in the model's forward must be passed by keyword"
            )
    return named


def _check_mask(mask: torch.Tensor | None) -> None:
    """Raise ValueError for a mask that excludes tokens or does not have two dimensions; see [Note: masks]."""
    if mask is None:
        return
    if mask.dim() != 2 or not bool((mask == 1).all()):
        raise ValueError(
            f"context parallelism: attention_mask of shape {tuple(mask.shape)} masks tokens; only causal "
            "attention to all earlier tokens is supported for parts of sequences. Padding at the end of "
            "sequences needs no mask"
        )
