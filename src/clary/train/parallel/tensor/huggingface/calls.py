"""Conversion of calls of transformers' modules into calls of distributed modules, and of results back."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from clary.train.parallel import runtime
from clary.train.parallel.caches import CACHES
from clary.train.parallel.tensor.collectives import gather_whole
from clary.train.parallel.tensor.module import current_layout
from clary.train.parallel.tensor.registry import Arguments

_NO_MASK, _BOOLEAN, _ADDED = range(3)  # kinds of masks, as numbers that ranks exchange
_NEWER = 5  # first major version of transformers whose blocks return a tensor and whose heads are called lm_head


def model_forward_hook(model_class: Any) -> Callable[..., Arguments]:
    """Return a function that converts a causal language model's call into one of `DistributedTransformerLMHead`."""
    signature = inspect.signature(model_class.forward)

    def hook(*args: Any, **kwargs: Any) -> Arguments:
        given = by_name(signature, args, kwargs)
        who = model_class.__name__
        refuse(
            who,
            given,
            *CACHES,
            "inputs_embeds",
            "token_type_ids",
            "encoder_hidden_states",
            "encoder_attention_mask",
            "output_attentions",
            "output_hidden_states",
            "logits_to_keep",
            "shift_labels",
        )
        mask = given.get("attention_mask")
        if mask is not None:
            if mask.dim() != 2:
                raise ValueError(f"{who} takes an attention_mask [N, S] here; got one of shape {tuple(mask.shape)}")
            mask = 1 - mask.long()  # in our masks, 1 means masked
        inputs = (given.get("input_ids"), mask, None, given.get("position_ids"), given.get("labels"))
        return (inputs,), {"num_items": given.get("num_items_in_batch")}

    return hook


def model_return_hook(result: Any) -> Callable[[Any], Any]:
    """Return a function that converts logits, or loss and logits, to a model's result of class `result`."""

    def hook(output: Any) -> Any:
        loss, logits = output if isinstance(output, tuple) else (None, output)
        return result(loss=loss, logits=logits)

    return hook


def block_forward_hook(block_class: Any, *, takes_positions: bool = False) -> Callable[..., Arguments]:
    """Return a function that converts a block's call into a call of `DistributedTransformerLayer`."""
    signature = inspect.signature(block_class.forward)

    def hook(*args: Any, **kwargs: Any) -> Arguments:
        given = by_name(signature, args, kwargs)
        who = block_class.__name__
        refuse(who, given, *CACHES, "encoder_hidden_states", "output_attentions", "head_mask")
        mask = layer_mask(given.get("attention_mask"), given["hidden_states"], who)
        positions = (given.get("position_ids"),) if takes_positions else ()
        return ((given["hidden_states"], mask, *positions),), {}

    return hook


def block_return_hook(block_class: Any, *, is_tuple_unless_said: bool = False) -> Callable[[Any], Any]:
    """Return a function that converts a layer's result to a block's: hidden states, or a tuple of them.

    A block whose `forward` is annotated to return a tensor returns a tensor; for other blocks the version of
    transformers decides.

    Args:
        block_class: the replaced class of transformers.
        is_tuple_unless_said: whether a block without that annotation returns a tuple in every version.
    """
    said = inspect.signature(block_class.forward).return_annotation
    returns_tuple = said not in (torch.Tensor, "torch.Tensor") and (is_tuple_unless_said or not is_newer())

    def hook(output: Any) -> Any:
        return (output[0], None) if returns_tuple else output[0]

    return hook


def encoder_forward_hook(encoder_class: Any) -> Callable[..., Arguments]:
    """Return a function that converts an encoder's call into a call of `DistributedTransformer`."""
    signature = inspect.signature(encoder_class.forward)
    who = encoder_class.__name__

    def hook(*args: Any, **kwargs: Any) -> Arguments:
        given = by_name(signature, args, kwargs)
        refuse(who, given, "encoder_hidden_states", *CACHES, "output_attentions", "output_hidden_states", "head_mask")
        hidden = given["hidden_states"]
        return ((hidden, layer_mask(given.get("attention_mask"), hidden, who)),), {}

    return hook


def encoder_return_hook(result: Any) -> Callable[[Any], Any]:
    """Return a function that converts hidden states to an encoder's result of class `result`."""
    return lambda output: result(last_hidden_state=output[0])


def is_newer() -> bool:
    """Return whether the program's transformers is 5 or newer; True if it is not imported."""
    transformers = sys.modules.get("transformers")
    return transformers is None or int(transformers.__version__.partition(".")[0]) >= _NEWER


def layer_mask(mask: Any, hidden: torch.Tensor, who: str) -> Any:
    """Return a layer's mask: transformers' 4-dimensional mask, or a new one if only other ranks have one. Collective.

    Args:
        mask: None if transformers omits it, as it does if no row of this rank's batch is padded.
        hidden: [N, S, H], the hidden states to which the mask applies.

    Raises: ValueError for another kind of mask, such as flash attention's.
    """
    if mask is not None and getattr(mask, "ndim", None) != 4:
        raise ValueError(
            f"{who} got an attention mask that is not a tensor of four dimensions: load the model with "
            "attn_implementation='sdpa' or 'eager'"
        )
    if not runtime.is_initialized():  # the program calls the hook directly
        return mask
    layout = current_layout()
    if layout.is_prescaled or layout.group.size == 1:
        return mask
    # The group's batches are gathered with their masks, so all ranks must have a mask if any rank has one.
    kind = _NO_MASK if mask is None else _BOOLEAN if mask.dtype == torch.bool else _ADDED
    own = torch.tensor([[kind, 0 if mask is None else mask.shape[2]]], device=hidden.device)
    kind, num_queries = gather_whole(own, layout.group).amax(0).tolist()
    if mask is not None or kind == _NO_MASK:
        return mask
    shape = (1, 1, num_queries, hidden.shape[1])
    if kind == _BOOLEAN:
        return torch.ones(shape, dtype=torch.bool, device=hidden.device)
    return torch.zeros(shape, dtype=hidden.dtype, device=hidden.device)


def refuse(who: str, given: Mapping[str, Any], *names: str) -> None:
    """Refuse arguments that a distributed module does not support.

    Raises: ValueError naming the first such argument.
    """
    for name in names:
        value = given.get(name)
        if isinstance(value, list | tuple) and all(one is None for one in value):  # one per layer, in older versions
            continue
        if value is not None and value is not False and not (isinstance(value, int) and value == 0):
            hint = ": set use_cache=False" if name in CACHES else ""
            raise ValueError(f"{who} takes no {name} under tensor parallelism{hint}")


def by_name(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method's call, by name.

    Args:
        signature: the method's signature, including `self`.
        args: positional arguments without `self`.
        kwargs: keyword arguments; arguments of a ** parameter keep their own names.

    Raises: TypeError for arguments that the method does not take.
    """
    bound = signature.bind(None, *args, **kwargs).arguments
    more = {one.name for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD}
    found = {name: value for name, value in bound.items() if name not in more}
    for name in more:
        found |= bound.get(name, {})
    return found
