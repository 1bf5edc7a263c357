"""Registers the backend `smddp` with torch.distributed.

Where: `clary_autoload.register`, an entry point that torch calls at the end of `import torch`, calls `autoload`; the
modules that users import call `register`. Both import only torch.distributed, which torch imports anyway; the process
group and the library are loaded when the first group is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from clary.train.collective.adapters.torch import store_opening
from clary.train.collective.adapters.torch.backend_name import BACKEND

if TYPE_CHECKING:
    from clary.train.collective.adapters.torch.process_group import SmddpProcessGroup

_DEVICES = ["cpu", "cuda"]


def autoload() -> None:
    """Register the backend and install `store_opening`; do nothing if torch was built without torch.distributed."""
    if dist.is_available():
        register()
        store_opening.install()


def register() -> None:
    """Register the backend once; a second call does nothing.

    Raises:
        RuntimeError: if this torch was built without torch.distributed.
    """
    if not dist.is_available():
        raise RuntimeError(
            f"backend {BACKEND}: this torch was built without torch.distributed; install one that has it"
        )
    if BACKEND.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(BACKEND, create_process_group, extended_api=True, devices=list(_DEVICES))


def create_process_group(options: dist.distributed_c10d._DistributedBackendOptions, _: object) -> SmddpProcessGroup:
    """Make the group that a call of init_process_group or new_group asks for; all its ranks must call it.

    Args:
        options: store, rank, size, name and timeout of the group. Backend options (the second argument) are not used.
    """
    # saves 17 ms in programs that make no such group
    from clary.train.collective.adapters.torch.creation import connect

    return connect(options)
