"""Orders from `bench_sharded` to the ranks of one run; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Order:
    """A model to train, and the way to shard it.

    Args:
        way: `ours`, `fsdp2`, `ddp` or `deepspeed` (ZeRO-3).
        degree: of sharding; ddp has none.
        ranks_a_host: how many ranks follow each other on each host.
        compute_s: how long all layers together sleep a step, a third of it forward.
        passes: backward passes a step.
        backend: of torch.distributed, `gloo` or `smddp`.
    """

    way: str
    degree: int
    is_hierarchical: bool = False
    ranks_a_host: int = 0
    num_layers: int = 8
    width: int = 2048
    compute_s: float = 0.0
    passes: int = 1
    backend: str = "gloo"
    optimizer: str = "SGD"
    num_warm: int = 1
    num_steps: int = 3
