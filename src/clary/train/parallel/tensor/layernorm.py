"""Layer normalisation of hidden states that may be split along the normalised dimension.

Source: arXiv 1910.07467 equation 4, for the root of the mean square.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from clary.train.parallel.tensor.collectives import TensorGroup, gather_into
from clary.train.parallel.tensor.module import DistributedModule

DEFAULT_EPSILON = 1e-5


class FusedLayerNorm(nn.LayerNorm):
    """Replacement of apex's class of this name by torch's layer norm, which is fused too.

    Programs use this class in isinstance checks, to exclude weights from weight decay.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = DEFAULT_EPSILON, elementwise_affine: bool = True
    ) -> None:
        super().__init__(normalized_shape, eps=eps, elementwise_affine=elementwise_affine)


class HiddenLayerNorm(DistributedModule, FusedLayerNorm):
    """Normalises hidden states in the inside layout; weight and bias are slices if the hidden states are split.

    `normalized_shape` and `eps` exist for programs that read these attributes of layer norms.

    Raises: NotDivisibleError if hidden states are split and the tensor group does not divide `hidden_size`.
    """

    def __init__(self, hidden_size: int, epsilon: float) -> None:
        super().__init__()  # DistributedModule's constructor, which skips constructors that make whole parameters
        self.normalized_shape, self.eps, self.elementwise_affine = (hidden_size,), epsilon, True
        self.add_parameter("weight", (hidden_size,), self.layout.split_dimension, nn.init.ones_)
        self.add_parameter("bias", (hidden_size,), self.layout.split_dimension, nn.init.zeros_)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the normalised hidden states, in the same layout and the dtype of the weight.

        Args:
            hidden: [M, S, H/T] if the layout is split, else [M, S, H]; see `layout`.
        """
        if self.layout.is_split and self.layout.group.size > 1:
            return _SplitLayerNorm.apply(hidden, self.weight, self.bias, self.eps, self.layout.group)
        dtype = torch.promote_types(hidden.dtype, self.weight.dtype)
        weight, bias = self.weight.to(dtype), self.bias.to(dtype)
        normal = functional.layer_norm(hidden.to(dtype), self.normalized_shape, weight, bias, self.eps)
        return normal.to(self.weight.dtype)

    def extra_repr(self) -> str:
        """Return the whole normalised shape and epsilon as text."""
        return f"{self.normalized_shape}, eps={self.eps}"


class HiddenRmsNorm(DistributedModule):
    """Divides hidden states (inside layout) by their root mean square; the weight is a slice if they are split.

    Raises: NotDivisibleError if hidden states are split and the tensor group does not divide `hidden_size`.
    """

    def __init__(self, hidden_size: int, epsilon: float) -> None:
        super().__init__()
        self.hidden_size, self.eps = hidden_size, epsilon
        self.add_parameter("weight", (hidden_size,), self.layout.split_dimension, nn.init.ones_)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the normalised hidden states, in the same layout and the dtype of the weight.

        Args:
            hidden: [M, S, H/T] if the layout is split, else [M, S, H]; see `layout`.
        """
        if self.layout.is_split and self.layout.group.size > 1:
            return _SplitRmsNorm.apply(hidden, self.weight, self.eps, self.layout.group)
        values = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + self.eps)
        return (values * scale * self.weight).to(self.weight.dtype)

    def extra_repr(self) -> str:
        """Return the whole hidden size and epsilon as text."""
        return f"{self.hidden_size}, eps={self.eps}"


def hidden_norm(hidden_size: int, epsilon: float, *, is_rms: bool) -> HiddenLayerNorm | HiddenRmsNorm:
    """Return a `HiddenRmsNorm` if `is_rms`, else a `HiddenLayerNorm`.

    Args:
        hidden_size: number of channels of the whole hidden states.
        epsilon: added to the variance or mean square before the root.

    Raises: NotDivisibleError if hidden states are split and the tensor group does not divide `hidden_size`.
    """
    return (HiddenRmsNorm if is_rms else HiddenLayerNorm)(hidden_size, epsilon)


class _SplitLayerNorm(torch.autograd.Function):
    """Layer normalisation over a split dimension: one small exchange in forward, one in backward.

    Ranks exchange mean and variance of their slices, since sums of squares would lose precision. Statistics are float32
    or wider.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, group: TensorGroup
    ) -> torch.Tensor:
        values = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        own = torch.stack(tuple(reversed(torch.var_mean(values, dim=-1, correction=0))))
        every = own.new_empty((group.size, *own.shape))
        gather_into(every.flatten(0, 1), own, group)
        means, variances = every.unbind(1)
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)
        scale = torch.rsqrt(variance + epsilon)
        ctx.group = group
        ctx.save_for_backward(hidden, weight, mean, scale)
        normal = (values - mean.unsqueeze(-1)) * scale.unsqueeze(-1)
        return (normal * weight + bias).to(weight.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, mean, scale = ctx.saved_tensors
        gradient = gradient.to(mean.dtype)
        normal = (hidden.to(mean.dtype) - mean.unsqueeze(-1)) * scale.unsqueeze(-1)
        weighted = gradient * weight
        means = torch.stack((weighted.mean(-1), (weighted * normal).mean(-1)))
        dist.all_reduce(means, group=ctx.group.process_group)
        of_mean, of_scale = (means / ctx.group.size).unsqueeze(-1).unbind()
        of_hidden = (weighted - of_mean - normal * of_scale) * scale.unsqueeze(-1)
        of_weight = (gradient * normal).flatten(0, -2).sum(0).to(weight.dtype)
        return of_hidden.to(hidden.dtype), of_weight, gradient.flatten(0, -2).sum(0).to(weight.dtype), None, None


class _SplitRmsNorm(torch.autograd.Function):
    """Division by the root of the mean square over a split dimension, as in `_SplitLayerNorm`."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, group: TensorGroup
    ) -> torch.Tensor:
        values = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        mean = values.square().mean(-1)
        dist.all_reduce(mean, group=group.process_group)
        scale = torch.rsqrt(mean / group.size + epsilon)
        ctx.group = group
        ctx.save_for_backward(hidden, weight, scale)
        return (values * scale.unsqueeze(-1) * weight).to(weight.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, scale = ctx.saved_tensors
        gradient, scale = gradient.to(scale.dtype), scale.unsqueeze(-1)
        normal = hidden.to(scale.dtype) * scale
        weighted = gradient * weight
        mean = (weighted * normal).mean(-1)
        dist.all_reduce(mean, group=ctx.group.process_group)
        of_hidden = (weighted - normal * (mean / ctx.group.size).unsqueeze(-1)) * scale
        of_weight = (gradient * normal).flatten(0, -2).sum(0).to(weight.dtype)
        return of_hidden.to(hidden.dtype), of_weight, None, None
