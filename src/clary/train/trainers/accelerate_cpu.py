"""Patch of accelerate, newer versions of which treat each rank on a host without a GPU as the only process.

Where: `installing` patches `accelerate.state` in ranks. Without the patch, every rank silently trains alone on all
samples or, with DeepSpeed, averages gradients of equal batches.
Source: accelerate 1.15 `state.PartialState._prepare_backend`, which finds no backend unless `cpu=True`, and 1.1, which
found gloo.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

_BACKEND = "gloo"


def mend_state(module: ModuleType) -> None:
    """Make a rank without a GPU join all ranks, over gloo unless the program has already made another group.

    Args:
        module: `accelerate.state`; not changed if it has no `_prepare_backend`.
    """
    state = getattr(module, "PartialState", None)
    original = getattr(state, "_prepare_backend", None)
    if original is None:
        return

    @functools.wraps(original)
    def _prepare_backend(self: Any, *arguments: Any, **keywords: Any) -> Any:
        backend, kind = original(self, *arguments, **keywords)
        if backend is None and "LOCAL_RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
            return _BACKEND, type(kind).MULTI_CPU
        return backend, kind

    state._prepare_backend = _prepare_backend  # type: ignore[union-attr]
