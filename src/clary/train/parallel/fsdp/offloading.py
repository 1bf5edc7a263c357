"""torch's `offload_wrapper` with our engine: saved tensors move to host memory and are loaded ahead of backward.

Where: `session.init` installs it with `sm_activation_offloading`. Scripts wrap layers in `checkpoint_wrapper` and the
model in `offload_wrapper`. Every checkpointed layer is a region; at most `activation_loading_horizon` regions are
loaded ahead. The tensors that the model saves outside its layers form one more region. On a machine without a GPU
nothing is copied unless a folder is named: see `memory.offloading`.
Source: SageMaker developer guide, "Activation offloading" of the library v2.
"""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, OffloadWrapper
from torch.utils import _pytree as pytree

from clary.train.parallel.memory.offloading import Offloader


class _Depth(threading.local):
    value = 0  # nesting depth of offload wrapper calls in this thread


_depth = _Depth()
_installed: list[tuple[Any, Any]] = []  # (class, its original forward)
_engine: list[Offloader] = []


def install(*, horizon: int, folder: Path | None = None) -> Offloader:
    """Make every `OffloadWrapper` of this process use one offloading engine, and return the engine.

    Args:
        horizon: number of layers that may be loaded before backward needs them; 1 or more.
        folder: folder of a file for the activations; None is host memory.

    Raises: ValueError for a horizon below 1.
    """
    remove()
    offloader = Offloader(folder, horizon=horizon)
    _engine.append(offloader)
    for owner, enters in ((OffloadWrapper, True), (CheckpointWrapper, False)):
        _installed.append((owner, owner.forward))
        owner.forward = _forward(owner.forward, offloader, enters=enters)
    return offloader


def remove() -> None:
    """Restore torch's own wrappers; currently offloaded tensors are lost."""
    while _installed:
        owner, forward = _installed.pop()
        owner.forward = forward
    while _engine:
        _engine.pop().close()


def _forward(original: Any, offloader: Offloader, *, enters: bool) -> Any:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not enters and _depth.value == 0:
            return original(self, *args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        _depth.value += enters
        try:
            with offloader.region(tensors):
                # Torch's forward of an offload wrapper would copy the tensors again.
                return self._checkpoint_wrapped_module(*args, **kwargs) if enters else original(self, *args, **kwargs)
        finally:
            _depth.value -= enters

    return forward
