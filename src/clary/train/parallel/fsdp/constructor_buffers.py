"""Buffers as constructors compute them, for modules that were made on the meta device.

Where: `delayed` calls it for each module, when the module's buffers have memory and hold the mark of `unset`.

[Note: rotary] Rotary embeddings of transformers 5, and of Llama and GPT-NeoX since 4.45, keep their config and have a
function that computes frequencies. Older ones, and Mistral and Mixtral before 4.48, keep the arguments of their
constructors: the class is made again on the CPU, as in an eager model, and its buffers are copied. A class with a
further argument is left alone, since its value is unknown.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from clary.train.parallel.fsdp.modules import is_unset

_ROPES = ("rope_init_fn", "compute_default_rope_parameters")
_NEEDED = {"dim", "base"}  # arguments by which rotary embeddings are recognised
_HIDDEN_SCORE = -1e9  # of GPT-NeoX


def fill_buffers(module: nn.Module) -> None:
    """Compute the buffers of one module that have no values, as its constructor did, if it is known how."""
    if callable(getattr(module, "reset_buffers", None)):
        module.reset_buffers()
    if callable(getattr(module, "reset_running_stats", None)):
        module.reset_running_stats()
    if _is_without_values(module, "inv_freq") and not _fill_by_config(module):
        _fill_by_constructor(module)
    if callable(getattr(module, "_init_bias", None)) and _is_without_values(module, "bias"):
        _fill_causal_mask(module)


def _is_without_values(module: nn.Module, name: str) -> bool:
    buffer = module._buffers.get(name)
    return buffer is not None and is_unset(buffer)


def _fill_by_config(module: nn.Module) -> bool:
    """Compute frequencies by the module's own function; return whether it has one."""
    if not hasattr(module, "config"):
        return False
    frequencies = module._buffers["inv_freq"]
    assert frequencies is not None
    for name in _ROPES:
        compute = getattr(module, name, None)
        if compute is not None:
            takes_device = "device" in inspect.signature(compute).parameters
            values: Any = compute(module.config, *([frequencies.device] if takes_device else []))[0]
            frequencies.copy_(values)
            if isinstance(getattr(module, "original_inv_freq", None), torch.Tensor):
                module.original_inv_freq = frequencies
            return True
    return False


def _fill_by_constructor(module: nn.Module) -> None:
    """Copy buffers from a module that is made of the arguments which this one has kept; see [Note: rotary]."""
    parameters = [one for name, one in inspect.signature(type(module)).parameters.items() if name != "device"]
    names = {one.name for one in parameters}
    is_plain = all(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in parameters)
    if not is_plain or not names >= _NEEDED or not all(hasattr(module, name) for name in names):
        return
    with torch.device("cpu"):
        made = type(module)(**{name: getattr(module, name) for name in names})
    for name, buffer in module._buffers.items():
        values = made._buffers.get(name)
        if buffer is not None and values is not None and values.shape == buffer.shape:
            buffer.copy_(values)


def _fill_causal_mask(module: nn.Module) -> None:
    """Make the masks of an attention of GPT-NeoX before transformers 4.48."""
    mask, hidden = module._buffers["bias"], module._buffers.get("masked_bias")
    assert mask is not None
    if mask.dtype is torch.bool and mask.dim() == 4 and mask.shape[2] == mask.shape[3]:
        mask.copy_(torch.ones(mask.shape[2:], dtype=torch.bool, device=mask.device).tril())
        if hidden is not None and hidden.dim() == 0:
            hidden.copy_(torch.tensor(_HIDDEN_SCORE))
