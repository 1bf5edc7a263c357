"""Linear layers cut over a tensor group: single layers by input features, inner ones by columns or rows.

Source: arXiv 1909.08053 section 3 (columns, then rows); arXiv 2205.05198 section 4.2.2 (second gather of a split input
for the backward pass).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from clary.train.parallel.tensor.autocast import cast_as_autocast
from clary.train.parallel.tensor.collectives import (
    TensorGroup,
    reduce_scatter,
)
from clary.train.parallel.tensor.collectives import all_gather as gather_columns
from clary.train.parallel.tensor.layout import Layout
from clary.train.parallel.tensor.module import DistributedModule, bias_fill, weight_fill
from clary.train.parallel.tensor.parts import RowProduct


class DistributedLinear(DistributedModule):
    """A linear layer whose input features are cut over the tensor group; arguments are the whole sizes.

    `forward` takes [N, ..., in_features] and returns [N, ..., out_features]. The weight is a slice along dimension 1;
    the bias is whole on every rank.

    Raises: NotDivisibleError if the tensor group does not divide `in_features`.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.add_parameter("weight", (out_features, in_features), 1, weight_fill(in_features, None))
        if bias:
            self.add_parameter("bias", (out_features,), None, bias_fill(in_features, None))
        else:
            self.register_parameter("bias", None)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as torch.nn.Linear
        """Return the layer's output for this rank's rows.

        Args:
            input: [N, ..., in_features], or [in_features]; the result is [N, ..., out_features], or [out_features].
        """
        rows = input.unsqueeze(0) if input.dim() == 1 else input
        output = self.layout.leave_partial(functional.linear(self.layout.enter_split(rows), self.weight))
        if self.bias is not None:
            output = output + self.layout.outside(self.bias)
        return output.squeeze(0) if input.dim() == 1 else output

    def extra_repr(self) -> str:
        """Return the whole sizes as text."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class ColumnLinear(DistributedModule):
    """A linear layer whose output features are cut: from hidden states (inside layout) to this rank's columns."""

    def __init__(self, in_features: int, out_features: int, *, normal_std: float | None, bias: bool = True) -> None:
        super().__init__()
        self.add_parameter("weight", (out_features, in_features), 0, weight_fill(in_features, normal_std))
        if bias:
            self.add_parameter("bias", (out_features,), 0, bias_fill(in_features, normal_std))
        else:
            self.register_parameter("bias", None)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [M, S, out/T] for hidden states in the inside layout."""
        return apply_columns(hidden, [self], self.layout)[0]


class RowLinear(RowProduct, DistributedModule):
    """A linear layer whose input features are cut: from this rank's columns to hidden states (inside layout)."""

    def __init__(self, in_features: int, out_features: int, *, normal_std: float | None, bias: bool = True) -> None:
        super().__init__()
        self.add_parameter("weight", (out_features, in_features), 1, weight_fill(in_features, normal_std))
        if bias:
            self.add_parameter("bias", (out_features,), self.layout.split_dimension, bias_fill(in_features, normal_std))
        else:
            self.register_parameter("bias", None)


def apply_columns(hidden: torch.Tensor, layers: Sequence[ColumnLinear], layout: Layout) -> list[torch.Tensor]:
    """Apply several layers to one input, which is gathered once; return each layer's columns.

    Args:
        hidden: hidden states in the inside layout: [M, S, H/T] or [M, S, H], see `layout`.
        layers: each returns [M, S, out/T].
    """
    if layout.is_split and layout.group.size > 1:
        hidden, *weights = cast_as_autocast([hidden, *(layer.weight for layer in layers)])
        products = _GatheredProducts.apply(hidden, layout.group, *weights)
        return [
            product if layer.bias is None else product + layer.bias.to(product.dtype)
            for product, layer in zip(products, layers, strict=True)
        ]
    whole = layout.whole(hidden)
    return [functional.linear(whole, layer.weight, layer.bias) for layer in layers]


class _GatheredProducts(torch.autograd.Function):
    """Products of a split input with several weights; saves the slice alone and gathers again in backward."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, group: TensorGroup, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.group = group
        ctx.save_for_backward(hidden, *weights)
        whole = gather_columns(hidden, group, -1)
        return tuple(functional.linear(whole, weight) for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, *weights = ctx.saved_tensors
        of_input, of_weights = None, [None] * len(weights)
        if ctx.needs_input_grad[0]:
            total = sum(gradient @ weight for gradient, weight in zip(gradients, weights, strict=True))
            of_input = reduce_scatter(total, ctx.group, -1)
        if any(ctx.needs_input_grad[2:]):
            whole = gather_columns(hidden, ctx.group, -1).flatten(0, -2)
            of_weights = [gradient.flatten(0, -2).t() @ whole for gradient in gradients]
        return of_input, None, *of_weights
