"""Hooks that give rotary embeddings the length of the whole sequence, of which a rank's module sees a part.

transformers before 4.38 (Mixtral: 4.48) builds tables for a length that attention passes, and indexes them by position:
they must cover the last position of all ranks. In later versions, frequencies that depend on the length ("dynamic",
"longrope") derive it from the highest position, which most ranks' parts lack.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_SEQUENCE = -1  # the dimension of position_ids


def lengthen(model: nn.Module, size: int) -> None:
    """Make a model's rotary embeddings compute for sequences `size` times as long as the rank's part.

    Affects modules whose class is named ...RotaryEmbedding..., that take `seq_len` or `position_ids` by keyword, or
    `position_ids` as the second argument, and that return cosines and sines.
    """
    for module in model.modules():
        if "RotaryEmbedding" in type(module).__name__:
            hooks = _Hooks(size)
            module.register_forward_pre_hook(hooks.before, with_kwargs=True)
            module.register_forward_hook(hooks.after)


class _Hooks:
    """Hooks around one embedding; called by one thread at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._is_longer = False

    def before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Replace the part's length with the whole length, or add the last position of the sequence."""
        self._is_longer = False
        if kwargs.get("seq_len") is not None:
            return args, {**kwargs, "seq_len": args[0].shape[-2] * self._size}
        positions = kwargs["position_ids"] if "position_ids" in kwargs else args[1] if len(args) > 1 else None
        if not isinstance(positions, torch.Tensor):
            return args, kwargs
        self._is_longer = True
        last = torch.full_like(positions[..., :1], positions.shape[_SEQUENCE] * self._size - 1)
        positions = torch.cat((positions, last), _SEQUENCE)
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": positions}
        return (args[0], positions, *args[2:]), kwargs

    def after(self, _: nn.Module, __: Any, output: Any) -> Any:
        """Remove the values of the additional position."""
        if not self._is_longer:
            return None
        return tuple(one[..., :-1, :] for one in output)
