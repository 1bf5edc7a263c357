"""All-gather and reduce-scatter of tensors of which every rank of a group holds an equal part.

torch 2.13 renames both functions, and warns about the earlier names.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def gather_parts(whole: torch.Tensor, part: torch.Tensor, group: Any, *, async_op: bool = False) -> Any:
    """All-gather the parts of all ranks into `whole`, concatenated along the first dimension.

    Args:
        part: [n / number of ranks, ...], where `whole` is [n, ...].

    Returns: with `async_op`, the work to wait for; else None.
    """
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(whole, part, group=group, async_op=async_op)


def add_up_part(part: torch.Tensor, whole: torch.Tensor, group: Any, *, async_op: bool = False) -> Any:
    """Reduce-scatter: write this rank's part of the sum of all ranks' `whole` to `part`; return as `gather_parts`.

    Args:
        part: [n / number of ranks, ...], overwritten.
        whole: [n, ...], read.
        async_op: as `gather_parts` takes it; `whole` must not change until the wait has ended.
    """
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return scatter(part, whole, group=group, async_op=async_op)
