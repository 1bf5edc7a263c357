"""Patch of DistributedDataParallel for libraries that pass a GPU index even on hosts without a GPU.

Where: used with smdistributed.dataparallel, for which libraries assume CUDA.
Source: transformers 4.28 to 5.24 `Trainer._wrap_model`; torch 2.13 `DistributedDataParallel.__init__`, which refuses
`device_ids` for a module on the CPU.
"""

from __future__ import annotations

import functools
from typing import Any

_MARK = "_clary_takes_cpu"


def take_modules_of_cpus() -> None:
    """Make DistributedDataParallel ignore a GPU index for a module on the CPU, if torch sees no GPU.

    A second call does nothing. If there is a GPU, torch still refuses a module that was left on the CPU.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def __init__(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *arguments: Any, **keywords: Any
    ) -> None:
        if not torch.cuda.is_available() and all(one.device.type == "cpu" for one in module.parameters()):
            device_ids = output_device = None
        original(self, module, device_ids, output_device, *arguments, **keywords)

    setattr(__init__, _MARK, True)
    DistributedDataParallel.__init__ = __init__
