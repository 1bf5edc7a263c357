"""Transformer layers over a tensor group, and stacks of them.

Source: as `attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from clary.train.parallel.tensor.attention import DistributedAttentionLayer
from clary.train.parallel.tensor.layernorm import DEFAULT_EPSILON, hidden_norm
from clary.train.parallel.tensor.layout import Layout
from clary.train.parallel.tensor.module import DistributedModule
from clary.train.parallel.tensor.output import DistributedTransformerOutputLayer
from clary.train.parallel.tensor.residual import add
from clary.train.parallel.tensor.settings import ABOUT_POSITIONS, check_layernorms, read_settings

Entry: TypeAlias = torch.Tensor | None  # item of a layer's input tuple; a mask may be None


class DistributedTransformerLayer(DistributedModule):
    """One transformer layer: attention, optional cross-attention, output. Arguments are the whole sizes.

    `more` are fields of `LayerSettings`.

    Raises:
        NotDivisibleError: the tensor group does not divide heads or intermediate channels or, with optimize=memory,
            `hidden_size`.
        ValueError: arguments that exclude each other; the text names them.
        TypeError: an unknown argument.
    """

    def __init__(
        self,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = DEFAULT_EPSILON,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        causal_mask_size: int | None = None,
        add_cross_attention: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        **more: Any,
    ) -> None:
        super().__init__()
        settings = read_settings(more, type(self).__name__)
        check_layernorms(pre_layernorm=pre_layernorm, post_layernorm=post_layernorm)
        if settings.parallel_residual and (add_cross_attention or post_layernorm):
            raise ValueError("parallel_residual requires pre_layernorm without post_layernorm, and no cross-attention")
        self.has_cross_attention, self.settings = add_cross_attention, settings
        normalises_once = settings.shared_layernorm
        common: dict[str, Any] = {
            "hidden_size": hidden_size,
            "hidden_dropout_prob": hidden_dropout_prob,
            "layernorm_epsilon": layernorm_epsilon,
            "initializer_range": initializer_range,
            "use_normal_initialization": use_normal_initialization,
            "pre_layernorm": pre_layernorm and not normalises_once,
            "post_layernorm": post_layernorm,
            "adds_residual": not settings.parallel_residual,
            **more,
        }
        of_attention = {
            "num_attention_heads": num_attention_heads,
            "attention_head_size": attention_head_size,
            "attention_dropout_prob": attention_dropout_prob,
            **common,
        }
        is_rms = settings.use_rms_norm
        self.pre_layernorm = hidden_norm(hidden_size, layernorm_epsilon, is_rms=is_rms) if normalises_once else None
        self.attention = DistributedAttentionLayer(causal_mask_size=causal_mask_size, **of_attention).be_inner()
        if add_cross_attention:
            of_cross_attention = {name: value for name, value in of_attention.items() if name not in ABOUT_POSITIONS}
            self.cross_attention = DistributedAttentionLayer(cross_attention=True, **of_cross_attention).be_inner()
        self.output = DistributedTransformerOutputLayer(
            intermediate_size=intermediate_size, activation=activation, **common
        ).be_inner()

    def forward(self, inputs: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return `inputs` with the hidden states replaced.

        Args:
            inputs: (hidden_states [N, S, H], attention_mask [N, 1, 1, S]), or with cross-attention (hidden_states,
                cross_states [N, P, H], attention_mask, cross_mask [N, 1, 1, P]); positions [N, S] may follow for rotary
                embeddings. Masks as in `DistributedAttentionLayer`.
        """
        entries = inputs if self.is_inner else enter_entries(self.layout, inputs, is_cross=self.has_cross_attention)
        hidden = self._transform(entries)
        if not self.is_inner:
            hidden = leave_hidden(self.layout, hidden, inputs)
        return hidden, *inputs[1:]

    def _transform(self, entries: tuple[Entry, ...]) -> torch.Tensor:
        hidden, *rest = entries
        assert hidden is not None
        if self.settings.parallel_residual:
            normal = hidden if self.pre_layernorm is None else self.pre_layernorm(hidden)
            return add((hidden, self.attention((normal, *rest)), self.output(normal)), self.settings)
        if not self.has_cross_attention:
            return self.output(self.attention((hidden, *rest)))
        cross, mask, cross_mask, *positions = rest
        hidden = self.attention((hidden, mask, *positions))
        return self.output(self.cross_attention((hidden, cross, cross_mask)))


class DistributedTransformer(DistributedModule):
    """A sequence of transformer layers, in `seq_layers`.

    With both layer normalisations on, the sequence's input and output are normalised as well. `more` are fields of
    `LayerSettings`; `attention_window` may be a list, one per layer.

    Raises: as `DistributedTransformerLayer`.
    """

    def __init__(
        self,
        num_layers: int = 12,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = DEFAULT_EPSILON,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        causal_mask_size: int | None = None,
        add_cross_attention: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        **more: Any,
    ) -> None:
        super().__init__()
        self.has_cross_attention = add_cross_attention
        both = pre_layernorm and post_layernorm
        self.seq_layers = nn.Sequential(
            *(
                DistributedTransformerLayer(
                    num_attention_heads=num_attention_heads,
                    attention_head_size=attention_head_size,
                    hidden_size=hidden_size,
                    intermediate_size=intermediate_size,
                    attention_dropout_prob=attention_dropout_prob,
                    hidden_dropout_prob=hidden_dropout_prob,
                    activation=activation,
                    layernorm_epsilon=layernorm_epsilon,
                    initializer_range=initializer_range,
                    use_normal_initialization=use_normal_initialization,
                    causal_mask_size=causal_mask_size,
                    add_cross_attention=add_cross_attention,
                    pre_layernorm=pre_layernorm,
                    post_layernorm=post_layernorm,
                    **_of_layer(more, number),
                ).be_inner()
                for number in range(num_layers)
            )
        )
        is_rms = more.get("use_rms_norm", False)
        self.input_layernorm = hidden_norm(hidden_size, layernorm_epsilon, is_rms=is_rms) if both else None
        has_output_layernorm = both or more.get("final_layernorm", False)
        self.layernorm = hidden_norm(hidden_size, layernorm_epsilon, is_rms=is_rms) if has_output_layernorm else None

    def forward(self, inputs: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return `inputs` with the hidden states replaced; arguments as in `DistributedTransformerLayer.forward`."""
        entries = inputs if self.is_inner else enter_entries(self.layout, inputs, is_cross=self.has_cross_attention)
        hidden = entries[0]
        if self.input_layernorm is not None:
            hidden = self.input_layernorm(hidden)
        hidden = self.seq_layers((hidden, *entries[1:]))[0]
        if self.layernorm is not None:
            hidden = self.layernorm(hidden)
        if not self.is_inner:
            hidden = leave_hidden(self.layout, hidden, inputs)
        return hidden, *inputs[1:]


def enter_entries(layout: Layout, inputs: Sequence[Entry], *, is_cross: bool) -> tuple[Entry, ...]:
    """Convert the inputs of a layer to the inside layout.

    Args:
        inputs: as in `DistributedTransformerLayer.forward`; a mask may be None.
        is_cross: whether the layer has cross-attention, so that `inputs` includes cross states and their mask.

    Raises: ValueError if there are too few or too many inputs.
    """
    num_hidden, num_masks = (2, 2) if is_cross else (1, 1)
    if not num_hidden + num_masks <= len(inputs) <= num_hidden + num_masks + 1 or inputs[0] is None:
        names = (
            "(hidden_states, cross_states, attention_mask, cross_mask)"
            if is_cross
            else ("(hidden_states, attention_mask)")
        )
        raise ValueError(f"a transformer layer takes a tuple {names}; got {len(inputs)} values")
    num_rows = inputs[0].shape[0]
    return tuple(
        None if entry is None else layout.enter(entry) if place < num_hidden else layout.enter_rows(entry, num_rows)
        for place, entry in enumerate(inputs)
    )


def leave_hidden(layout: Layout, hidden: torch.Tensor, inputs: Sequence[Entry]) -> torch.Tensor:
    """Convert hidden states to the outside layout and the dtype of the input.

    Args:
        hidden: [M, S, H/T] or [M, S, H], see `layout`; the result is [N, S, H].
        inputs: the layer's original inputs, whose first item determines the dtype.
    """
    assert inputs[0] is not None
    return layout.leave(hidden).to(inputs[0].dtype)


def _of_layer(more: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the settings of one layer of a stack."""
    found = {**more, "layer_idx": number}
    windows = more.get("attention_window")
    if isinstance(windows, Sequence):
        found["attention_window"] = windows[number]
    return found
