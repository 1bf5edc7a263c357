"""DistributedDataParallel under the name `smdistributed.dataparallel.DistributedDataParallel`, which AWS never had.

Where: `__getattr__` of the package imports it for scripts that follow certain guides: they import
`DistributedDataParallel` from `smdistributed.dataparallel`, wrap their model with it and make no group of ranks. Such
scripts work, and rank 0 prints how Clary interpreted them.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed
from smdistributed.dataparallel.torch import distributed
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as OfSmddp

_NOTICE = (
    "clary: smdistributed.dataparallel has no DistributedDataParallel of its own in AWS's library; understood as "
    "smdistributed.dataparallel.torch.parallel.distributed.DistributedDataParallel"
)
_JOINED = ", after init_process_group('smddp'), which the program has not called"


class DistributedDataParallel(OfSmddp):
    """The DistributedDataParallel of SMDDP, which joins the group of all ranks first if the program has not.

    Args:
        module: the model; all ranks get the parameters of rank 0.
        arguments: as for `smdistributed.dataparallel.torch.parallel.distributed.DistributedDataParallel`.

    State after failure: if an environment variable of a rank is missing, there is no group, and `module` is unchanged.
    A group that was joined before the failure remains.
    Raises: RuntimeError if this process was not started as a rank; the error names the distribution that starts ranks.
    """

    def __init__(self, module: torch.nn.Module, *arguments: Any, **named_arguments: Any) -> None:
        has_group = torch.distributed.is_initialized()
        if not has_group:
            distributed.init_process_group()
        super().__init__(module, *arguments, **named_arguments)
        if torch.distributed.get_rank() == 0:
            print(f"{_NOTICE}{'' if has_group else _JOINED}", file=sys.stderr, flush=True)
