"""SyncBatchNorm on the CPU: mean and variance are computed over the batches of all ranks, as on GPUs.

torch's own `forward` refuses tensors on the CPU, and its DistributedDataParallel refuses models with such layers there.
"""

from __future__ import annotations

from typing import Any


def synchronise_batch_norm(torch: Any) -> None:
    """Replace the `forward` of torch's SyncBatchNorm, and make DistributedDataParallel accept such layers."""
    dist = torch.distributed
    plain = torch.nn.modules.batchnorm._BatchNorm.forward

    class Sum(torch.autograd.Function):
        """The sum of a tensor over the ranks of a group; the gradients of all ranks are added up."""

        @staticmethod
        def forward(ctx: Any, own: Any, group: Any) -> Any:
            ctx.group = group
            total = own.clone()
            dist.all_reduce(total, group=group)
            return total

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            total = gradient.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=ctx.group)
            return total, None

    def forward(self: Any, input: Any) -> Any:  # noqa: A002 - torch's name
        self._check_input_dim(input)
        group = getattr(self, "process_group", None)
        if not self.training or not dist.is_available() or not dist.is_initialized():
            return plain(self, input)
        if dist.get_world_size(group) == 1:
            return plain(self, input)
        num_channels = input.shape[1]
        axes = [axis for axis in range(input.dim()) if axis != 1]
        wide = input.double()  # a difference of sums loses digits
        own_count = torch.full((1,), input.numel() // num_channels, dtype=torch.float64)
        totals = Sum.apply(torch.cat([wide.sum(axes), (wide * wide).sum(axes), own_count]), group)
        count = float(totals[-1].detach())
        mean = totals[:num_channels] / count
        variance = (totals[num_channels:-1] / count - mean * mean).clamp_min(0)
        shape = [1, num_channels] + [1] * (input.dim() - 2)
        result = (wide - mean.view(shape)) * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        _keep(self, mean.detach(), variance.detach() * (count / max(count - 1, 1)))
        return result.to(input.dtype)

    def _keep(self: Any, mean: Any, variance: Any) -> None:
        """Move the running statistics towards those of this batch, as torch does."""
        if not self.track_running_stats or self.running_mean is None:
            return
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_(variance.to(self.running_var.dtype), share)

    torch.nn.SyncBatchNorm.forward = forward
    torch.nn.parallel.DistributedDataParallel._passing_sync_batchnorm_handle = lambda self, module: None
