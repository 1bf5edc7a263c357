"""Replacement of a model's attention by attention over a context group.

[Note: two ways] transformers 4.48 and newer looks up the attention function in a table by a name in the configuration:
our function is registered in the table, and `spreading` sets its name in configurations. Other models call torch's
`scaled_dot_product_attention`, or flash-attn (see `flash_calls`): while their attention runs, both are replaced.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from clary.train.parallel.fsdp.context import flash_calls
from clary.train.parallel.fsdp.context.gathered import attend_gathered
from clary.train.parallel.fsdp.context.refusals import refuse_call
from clary.train.parallel.fsdp.context.ring import attend_in_ring
from clary.train.parallel.tensor.collectives import TensorGroup

COMMUNICATIONS = ("p2p", "all_gather")
INTERFACE_NAME = "clary_context_parallel"
_MARK = "_clary_context"
_made: dict[type, type] = {}


@dataclass(frozen=True, eq=False)
class Context:
    """Settings with which a module's attention is computed over a group.

    Args:
        communication: "p2p" or "all_gather".
    """

    group: TensorGroup
    communication: str

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
        dropout_prob: float = 0.0,
    ) -> torch.Tensor:
        """Return causal attention of this rank's queries to the keys of all ranks, [B, H, S, D].

        Args:
            query: [B, H, S, D]; `key` and `value`: [B, G, S, D], where G divides H.
            scale: factor of scores; None is 1 / sqrt(D).

        Raises:
            ValueError: queries and keys have different lengths, or an odd length.
            NotImplementedError: p2p with dropout of attention probabilities.
        """
        if query.shape[2] != key.shape[2] or query.shape[2] % 2:
            raise ValueError(
                f"context parallelism: attention got {query.shape[2]} queries and {key.shape[2]} keys on a rank; "
                "expected an equal, even number: caches of keys are not supported for parts of sequences"
            )
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        if self.communication == "all_gather":
            return attend_gathered(query, key, value, self.group, scale=scale, window=window, dropout_prob=dropout_prob)
        if dropout_prob:
            raise NotImplementedError(
                f"attention dropout is {dropout_prob}, which cp_comm_type p2p does not support: set it to 0 "
                "in the model's configuration, or use cp_comm_type all_gather"
            )
        return attend_in_ring(query, key, value, self.group, scale=scale, window=window)


def interface_of(module: nn.Module) -> Any:
    """Return the transformers table of a module's attention functions, or None if the module uses no table."""
    for one in type(module).__mro__:
        table = getattr(sys.modules.get(one.__module__), "ALL_ATTENTION_FUNCTIONS", None)
        if table is not None:
            return table
    return None


def hands_window_over(module: nn.Module) -> bool:
    """Return whether a module passes its sliding window to the attention function; other modules put it into a mask."""
    return interface_of(module) is not None or "Flash" in type(module).__name__


def put_in(module: nn.Module, context: Context) -> None:
    """Make a module compute its attention over the group; see [Note: two ways]."""
    vars(module)[_MARK] = context
    table = interface_of(module)
    if table is None:
        own = type(module)
        if own not in _made:
            members = {"__module__": own.__module__, "forward": _intercepting(own), **flash_calls.overriding(own)}
            _made[own] = type(own.__name__, (own,), members)
        flash_calls.replace_function(own)
        module.__class__ = _made[own]
    else:
        table[INTERFACE_NAME] = attend_for_transformers


def attend_for_transformers(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    head_mask: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Serve as one of transformers' attention functions; returns [B, S, H, D].

    Masks are ignored: some versions make a causal mask for the part, and `spreading` refuses any other mask.

    Args:
        module: the attention module; it has a `Context`.
        query: [B, H, S, D]; `key` and `value`: [B, G, S, D], where G divides H.
        scaling: factor of the scores; None is 1 / sqrt(D).
        dropout: probability with which attention weights are dropped.
        sliding_window: number of positions that a query sees, its own and earlier positions; None for all.
        is_causal: None for the module's own `is_causal`; False is refused, as are softcap, s_aux, position_bias and
            head_mask.
        others: keywords that do not change attention; see `refusals` for tensors among them.

    Raises:
        RuntimeError: the module belongs to a model that is not spread.
        ValueError: the caller asks for attention that parts of sequences do not support.
    """
    context = vars(module).get(_MARK)
    if context is None:
        raise RuntimeError(
            f"{type(module).__name__} shares its configuration with a model that is spread over a context group, and "
            "is not spread itself: give each model a configuration of its own"
        )
    refuse_call(
        type(module).__name__,
        {"softcap": softcap, "s_aux": s_aux, "position_bias": position_bias, "head_mask": head_mask},
        others,
        is_causal=bool(getattr(module, "is_causal", True) if is_causal is None else is_causal),
    )
    out = context.attend(query, key, value, scale=scaling, window=sliding_window, dropout_prob=dropout)
    return out.transpose(1, 2).contiguous(), None


def _intercepting(own: type[nn.Module]) -> Callable[..., Any]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        mode = _Interception(vars(self)[_MARK])
        with mode, flash_calls.attended_by(mode):
            result = own.forward(self, *args, **kwargs)
        if not mode.num_calls:
            raise RuntimeError(
                f"context parallelism: {own.__name__} called neither torch's scaled_dot_product_attention nor "
                f"{flash_calls.NAME}, so it saw its own part of the sequence alone: make the model with "
                "attn_implementation 'sdpa' or 'flash_attention_2'"
            )
        return result

    forward.__wrapped__ = own.forward  # type: ignore[attr-defined]  # for callers that inspect the signature
    return forward


class _Interception(TorchFunctionMode):
    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context
        self.num_calls = 0
        self._is_attending = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.scaled_dot_product_attention or self._is_attending:
            return func(*args, **(kwargs or {}))
        return self._attend_as_torch(*args, **(kwargs or {}))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **how: Any) -> torch.Tensor:
        """Call `Context.attend`, which may call torch's function itself."""
        self.num_calls += 1
        self._is_attending = True
        try:
            return self._context.attend(query, key, value, **how)
        finally:
            self._is_attending = False

    def _attend_as_torch(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if attn_mask is not None or not is_causal:
            raise ValueError(
                "context parallelism: scaled_dot_product_attention was called "
                f"{('with a mask' if attn_mask is not None else 'without is_causal')}; only causal attention "
                "without a mask is supported for parts of sequences"
            )
        del enable_gqa  # follows from the numbers of heads
        return self.attend(query, key, value, scale=scale, dropout_prob=dropout_p)
