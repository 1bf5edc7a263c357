"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from horovod.common.basics import size
from horovod.torch import asynchronous as ops

_Function: Any = torch.autograd.Function


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """`torch.nn.BatchNorm` of 1 to 3 dimensions whose mean and variance are computed over the batches of all ranks.

    The length of a batch may differ by rank. In evaluation, and with a single rank, it is a plain BatchNorm.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - torch's name
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input, got {input.dim()}D")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Normalize a batch.

        Args:
            input: [batch, channels, ...].
        """
        self._check_input_dim(input)
        if not self.training or size() == 1:
            return super().forward(input)
        if self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        output, mean, variance, count = _SyncBatchNorm.apply(input, self.weight, self.bias, self.eps)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            batches = float(self.num_batches_tracked or 1)
            momentum = 1.0 / batches if self.momentum is None else self.momentum
            unbiased = variance * (count / (count - 1)) if float(count) > 1 else variance
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
        return output


class _SyncBatchNorm(_Function):
    @staticmethod
    def forward(
        ctx: Any, batch: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> Any:
        axes = [axis for axis in range(batch.dim()) if axis != 1]
        count = batch.numel() // batch.shape[1]
        wide = batch.double()
        sums = torch.cat(
            [
                wide.sum(axes),
                (wide * wide).sum(axes),
                torch.tensor([count], dtype=torch.float64, device=batch.device),
            ]
        )
        total = ops.synchronize(ops.allreduce_async(sums, op=ops.Sum))
        channels = batch.shape[1]
        whole = total[-1]
        mean = total[:channels] / whole
        variance = (total[channels : 2 * channels] / whole - mean * mean).clamp_(min=0)
        inverse = (variance + eps).rsqrt()
        shape = [1, -1] + [1] * (batch.dim() - 2)
        normal = ((wide - mean.view(shape)) * inverse.view(shape)).to(batch.dtype)
        ctx.save_for_backward(normal, weight, inverse, whole)
        output = normal if weight is None else normal * weight.view(shape)
        if bias is not None:
            output = output + bias.view(shape)
        result = (output, mean, variance, whole)  # of float64: a half holds no count above 65504
        ctx.mark_non_differentiable(*result[1:])
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        """Return the gradient of the batch, from sums of all ranks, and of weight and bias, from this rank's rows."""
        normal, weight, inverse, whole = ctx.saved_tensors
        axes = [axis for axis in range(gradient.dim()) if axis != 1]
        shape = [1, -1] + [1] * (gradient.dim() - 2)
        of_weight = (gradient * normal).sum(axes)
        of_bias = gradient.sum(axes)
        scaled = gradient if weight is None else gradient * weight.view(shape)
        sums = torch.cat([scaled.double().sum(axes), (scaled * normal).double().sum(axes)])
        total = ops.synchronize(ops.allreduce_async(sums, op=ops.Sum)) / whole
        channels = gradient.shape[1]
        mean, slope = total[:channels].view(shape), total[channels:].view(shape)
        of_batch = ((scaled - mean - normal * slope) * inverse.view(shape)).to(gradient.dtype)
        return of_batch, None if weight is None else of_weight, None if weight is None else of_bias, None
