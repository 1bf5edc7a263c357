"""DistributedDataParallel with the arguments of SMDDP 1.3 and before: torch's own class, over the backend `smddp`.

Source: sagemaker-python-sdk `doc/api/training/sdp_versions/v1.2.x/smd_data_parallel_pytorch.rst`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from smdistributed.dataparallel.torch import distributed
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from clary.train.collective.adapters.torch.overlap import tune_buckets

_PARAMETERS = inspect.signature(TorchDistributedDataParallel).parameters
# The argument is called broadcast_buffers before torch 2.13.
_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers"


class DistributedDataParallel(TorchDistributedDataParallel):
    """A model whose gradients are averaged over all ranks while they are computed; `module` is the model itself.

    Args:
        module: the model; all ranks get the parameters of rank 0.
        device_ids: the one GPU of this rank. Without effect for a model on the CPU, so that scripts run without a GPU,
            too.
        output_device: as device_ids.
        broadcast_buffers: whether rank 0's buffers replace the buffers of other ranks before each forward pass.
        process_group: None or `group.WORLD`, the only group of SMDDP.
        bucket_cap_mb: size of a bucket of gradients, in MiB. With None, the buckets are fitted to measurements of the
            first steps; until then, and if measurement is impossible, the size is 25.
        gradient_accumulation_steps: 1. SMDDP took other numbers before 1.4.0.
        more: further arguments of torch's class, such as find_unused_parameters.

    Raises: ValueError for another process group or number of steps; TypeError for an argument that torch's class lacks;
        RuntimeError if `init_process_group` was not called.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        broadcast_buffers: bool = True,
        process_group: object | None = None,
        bucket_cap_mb: int | None = None,
        *,
        gradient_accumulation_steps: int = 1,
        **more: Any,
    ) -> None:
        if gradient_accumulation_steps != 1:
            raise ValueError(
                f"gradient_accumulation_steps is {gradient_accumulation_steps}, expected 1: how SMDDP before 1.4.0 "
                "scaled accumulated gradients is not documented, and SMDDP 1.4.0 and later has no such argument: leave "
                "it out, and run all backward passes before the last one of a step under model.no_sync()"
            )
        distributed.check_group(distributed.group.WORLD if process_group is None else process_group)
        is_on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
        super().__init__(
            module,
            device_ids=None if is_on_cpu else device_ids,
            output_device=None if is_on_cpu else output_device,
            bucket_cap_mb=bucket_cap_mb,
            **{_BUFFERS: broadcast_buffers, **more},
        )
        if bucket_cap_mb is None:
            tune_buckets(self)
