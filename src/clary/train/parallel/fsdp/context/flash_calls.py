"""Replacement of flash-attn calls in transformers before 4.48 by attention over a context group.

[Note: two homes] Attention classes named ...FlashAttention2 call `_flash_attention_forward`: a method of the class
until 4.42, a function in its module since. The class of a module whose attention is spread over a context group
overrides the method. The function's replacement calls the `Attending` that is active in this thread, or the old
function if none is active.

[Note: windows] Both the method and the function pass flash-attn a window of w positions before a query and 0 after it;
so a query sees w + 1 positions.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from clary.train.parallel.fsdp.context.refusals import refuse_call

NAME = "_flash_attention_forward"
_USED = {"query_states", "key_states", "value_states", "kwargs"}  # arguments that hold tensors, or other arguments
_running = threading.local()


class Attending(Protocol):
    """An object that computes attention in place of flash-attn."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float | None,
        window: int | None,
        dropout_prob: float,
    ) -> torch.Tensor:
        """Return the attention of this rank's queries to the keys of all ranks.

        Args: as `interception.Context.attend`: queries [B, H, S, D], keys and values [B, G, S, D].
        """
        ...


def replace_function(own: type[nn.Module]) -> None:
    """Replace the function in the Python modules of a class and its bases, once; see [Note: two homes]."""
    for one in own.__mro__:
        home = sys.modules.get(one.__module__)
        function = getattr(home, NAME, None)
        if function is not None and not hasattr(function, "_clary_asks"):
            setattr(home, NAME, _asking(function))


def overriding(own: type[nn.Module]) -> dict[str, Callable[..., torch.Tensor]]:
    """Return {name: method} that overrides the method in a spread module's class; empty if the class lacks it."""
    method = getattr(own, NAME, None)
    if method is None:
        return {}
    signature = inspect.signature(method)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        attending = getattr(_running, "attending", None)
        if attending is None:
            result: torch.Tensor = method(self, *args, **kwargs)
            return result
        given = signature.bind(self, *args, **kwargs).arguments
        # The caller derives `use_sliding_windows` from this rank's keys alone, so the configured window is used.
        has_window = "use_sliding_windows" in signature.parameters
        window = getattr(self.config, "sliding_window", None) if has_window else None
        is_causal = bool(getattr(self, "is_causal", True))
        return _attend(attending, {**given, "sliding_window": window, "is_causal": is_causal})

    return {NAME: forward}


@contextmanager
def attended_by(attending: Attending) -> Iterator[None]:
    """Redirect this thread's calls of flash-attn to `attending` within a block."""
    before = getattr(_running, "attending", None)
    _running.attending = attending
    try:
        yield
    finally:
        _running.attending = before


def _asking(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        attending = getattr(_running, "attending", None)
        if attending is None:
            return function(*args, **kwargs)
        return _attend(attending, signature.bind(*args, **kwargs).arguments)

    forward._clary_asks = True  # type: ignore[attr-defined]
    return forward


def _attend(attending: Attending, given: Mapping[str, Any]) -> torch.Tensor:
    """Call `attending` with flash-attn's arguments; return [B, S, H, D], as flash-attn does.

    Raises: ValueError for a mask, a softcap, attention that is not causal, or other tensors.
    """
    if given.get("attention_mask") is not None:
        raise ValueError(
            f"context parallelism: {NAME} was called with a mask; only causal attention without a mask is supported "
            "for parts of sequences"
        )
    others = {name: value for name, value in {**given, **given.get("kwargs", {})}.items() if name not in _USED}
    refuse_call(NAME, {"softcap": given.get("softcap")}, others, is_causal=bool(given.get("is_causal", True)))
    query, key, value = (given[name].transpose(1, 2) for name in ("query_states", "key_states", "value_states"))
    window = given.get("sliding_window")
    out = attending.attend(
        query,
        key,
        value,
        scale=given.get("softmax_scale"),
        window=None if window is None else window + 1,
        dropout_prob=given.get("dropout", 0.0),
    )
    return out.transpose(1, 2)
