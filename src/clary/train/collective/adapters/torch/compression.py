"""Gradients of DistributedDataParallel in fewer bytes: torch's own communication hooks, made to fit backend smddp.

    compress(ddp, "bf16")                         # half the bytes
    compress(ddp, "powersgd", matrix_rank=4)      # far fewer, and another path of training

Call it once, before the first step. It can make the loss worse, so compare the loss (docs/benchmarks.md, `shrink`).

Precision of fp16 and bf16: hooks round to 16 bits, then divide by the number of ranks and round once more. The core
adds in float32 and rounds the result of each addition once. The ranks of one host are added in one addition. Between
hosts, the one-shot and the direct exchange make one addition for all hosts, the ring makes one per further host, and
halving-doubling makes log2 of the number of hosts. Partial sums that travel between hosts are 16 bit numbers.
PowerSGD's factors have the type of the gradients. PowerSGD starts a collective when an earlier one ends; this order is
the same on all ranks only within a bucket. A model that it compresses therefore gets one bucket per type of gradients.
"""

# No annotations from __future__: torch checks the annotations of hooks, which must be types.
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from clary.base.string_enum import StrEnum
from clary.train.collective.adapters.torch.overlap import set_bucket_caps

FIRST_STEP = 2  # of PowerSGD: torch rebuilds buckets after the first step, and error feedback needs final buckets


class Compression(StrEnum):
    """Ways to compress gradients."""

    FP16 = "fp16"  # 10 bits of mantissa; gradients below 6e-8 vanish, above 65504 overflow
    BF16 = "bf16"  # 7 bits of mantissa, float32's range
    POWERSGD = "powersgd"  # two factors of low rank a matrix; the error is added to the next step's gradient


def bf16_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket in bfloat16, as `default_hooks.bf16_compress_hook` does.

    It has another name, since torch refuses the hook of that name without NCCL, which the hook does not need.
    """
    return default_hooks.bf16_compress_hook(group, bucket)


def compress(
    model: DistributedDataParallel, compression: str, *, matrix_rank: int = 4, first_step: int = FIRST_STEP
) -> None:
    """Have the gradients of `model` reduced in fewer bytes from its first step on. Call it on every rank.

    Args:
        compression: one of `Compression`.
        matrix_rank: rank of PowerSGD's factors. For a matrix of m x n, matrix_rank * (m + n) numbers are sent in place
            of m * n.
        first_step: first step that PowerSGD compresses, 2 or more; gradients of earlier steps are not compressed.
    Raises: ValueError for any other compression; the errors of register_comm_hook, for example for a second hook.
    """
    group = model.process_group
    match compression:
        case Compression.FP16:
            model.register_comm_hook(group, default_hooks.fp16_compress_hook)
        case Compression.BF16:
            model.register_comm_hook(group, bf16_hook)
        case Compression.POWERSGD:
            set_bucket_caps(model, [sum(parameter.nbytes for parameter in model.parameters())])
            state = powerSGD_hook.PowerSGDState(
                group,
                matrix_approximation_rank=matrix_rank,
                start_powerSGD_iter=first_step,
                use_error_feedback=True,
                warm_start=True,
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        case _:
            raise ValueError(f"compression is {compression!r}, expected one of {', '.join(Compression)}")
