"""Settings of sharded data parallelism: the configuration's `sdp_` keys, and further settings of callers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from clary.train.parallel.configuration import Configuration


@dataclass(frozen=True, kw_only=True)
class ShardingSettings:
    """Settings of sharded data parallelism; sizes are numbers of elements.

    Args:
        reduce_bucket_size: maximum number of elements of one reduction, unless one parameter alone has more.
        param_persistence_threshold: parameters with fewer elements stay whole on every rank.
        max_live_parameters: limit of gathered elements; buffers are prefetched only within this limit.
        gradient_clipping: largest norm of all gradients; 0 does not clip.
        compute_dtype: dtype of gathered parameters; None keeps every parameter's dtype. Shards of 16-bit parameters are
            float32.
        reduce_dtype: dtype of gradients in reductions within the sharding group; None is the compute dtype.
        num_prefetched: number of flat buffers to prefetch.
        unit_classes: classes whose modules are units; if empty, `units` finds the units.
        broadcasts_first: whether all replicas start with the first replica's values.
    """

    reduce_bucket_size: int = 500_000_000
    param_persistence_threshold: int = 1_000_000
    max_live_parameters: int = 1_000_000_000
    gradient_clipping: float = 1.0
    compute_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    num_prefetched: int = 1
    unit_classes: tuple[type, ...] = ()
    broadcasts_first: bool = True


def settings_of(configuration: Configuration) -> ShardingSettings:
    """Return the settings from a configuration's keys."""
    dtype = torch.float16 if configuration.fp16 else torch.bfloat16 if configuration.bf16 else None
    return ShardingSettings(
        reduce_bucket_size=configuration.sdp_reduce_bucket_size,
        param_persistence_threshold=configuration.sdp_param_persistence_threshold,
        max_live_parameters=configuration.sdp_max_live_parameters,
        gradient_clipping=configuration.sdp_gradient_clipping,
        compute_dtype=dtype,
    )
