"""The output block of a transformer, with intermediate channels cut over a tensor group."""

from __future__ import annotations

from typing import Any

import torch

from clary.train.parallel.tensor.layernorm import DEFAULT_EPSILON, hidden_norm
from clary.train.parallel.tensor.linear import ColumnLinear, RowLinear, apply_columns
from clary.train.parallel.tensor.module import DistributedModule
from clary.train.parallel.tensor.parts import drop
from clary.train.parallel.tensor.residual import add_residual
from clary.train.parallel.tensor.settings import check_layernorms, find_activation, read_settings


class DistributedTransformerOutputLayer(DistributedModule):
    """Two linear layers around an activation, dropout, the residual, and layer normalisation before or after.

    With `use_gate`, the activation is applied to a third linear layer, `gate`, and multiplied by the result of the
    first layer.

    Arguments are the whole sizes. `more` are fields of `LayerSettings`.

    Raises:
        NotDivisibleError: the tensor group does not divide `intermediate_size`, or with optimize=memory `hidden_size`.
        ValueError: the activation is unknown, or both layer normalisations are off.
        TypeError: an unknown argument.
    Source: as `DistributedAttentionLayer`; dropout uses `hidden_dropout_prob`, which the documented reference lacks.
    """

    def __init__(
        self,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = DEFAULT_EPSILON,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        fp32_residual_addition: bool = False,
        **more: Any,
    ) -> None:
        super().__init__()
        more["fp32_residual_addition"] = fp32_residual_addition
        self.settings = read_settings(more, type(self).__name__)
        if self.settings.adds_residual:
            check_layernorms(pre_layernorm=pre_layernorm, post_layernorm=post_layernorm)
        self.hidden_dropout_prob = hidden_dropout_prob
        self.activation = find_activation(activation)
        std = initializer_range if use_normal_initialization else None
        bias, is_rms = self.settings.use_output_bias, self.settings.use_rms_norm
        self.dense1 = ColumnLinear(hidden_size, intermediate_size, normal_std=std, bias=bias)
        self.dense2 = RowLinear(intermediate_size, hidden_size, normal_std=std, bias=bias)
        self.gate = (
            ColumnLinear(hidden_size, intermediate_size, normal_std=std, bias=bias) if self.settings.use_gate else None
        )
        self.pre_layernorm = hidden_norm(hidden_size, layernorm_epsilon, is_rms=is_rms) if pre_layernorm else None
        self.layernorm = hidden_norm(hidden_size, layernorm_epsilon, is_rms=is_rms) if post_layernorm else None

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return hidden states [N, S, H] for hidden states [N, S, H]."""
        hidden = hidden_states if self.is_inner else self.layout.enter(hidden_states)
        normal = hidden if self.pre_layernorm is None else self.pre_layernorm(hidden)
        if self.gate is None:
            inner = self.activation(self.dense1(normal))
        else:
            inner, gates = apply_columns(normal, [self.dense1, self.gate], self.layout)
            inner = inner * self.activation(gates)
        output = self.dense2(inner)
        output = drop(output, self.hidden_dropout_prob if self.training else 0.0, self.layout)
        output = add_residual(output, hidden, self.layernorm, self.settings)
        return output if self.is_inner else self.layout.leave(output).to(hidden_states.dtype)
