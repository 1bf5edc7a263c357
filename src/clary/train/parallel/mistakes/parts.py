"""Refusal of `state_dict` on the wrapped model itself, which holds this rank's part or shards alone.

Where: `DistributedModel` calls `refuse_states` once other ranks hold parameters of its modules. This rank has freed the
memory of those parameters, so `model.get_module().state_dict()`, or a library's `save_pretrained`, would write zeros or
NaN in place of weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

import torch

from clary.train.parallel.errors import ParallelError

_is_ours: ContextVar[bool] = ContextVar("clary_reads_parts", default=False)


def refuse_states(modules: Iterable[torch.nn.Module]) -> list[Any]:
    """Make modules whose own parameters this rank has freed refuse `state_dict`; return handles that undo it."""
    return [one.register_state_dict_pre_hook(_refuse) for one in modules]


def state_of_parts(module: torch.nn.Module, **options: Any) -> dict[str, Any]:
    """Return a partial model's state under all its names, for internal callers.

    Args:
        options: arguments of torch's `state_dict`.
    """
    token = _is_ours.set(True)
    try:
        found: dict[str, Any] = module.state_dict(**options)
    finally:
        _is_ours.reset(token)
    return found


def _refuse(module: torch.nn.Module, _prefix: str, _keep_vars: bool) -> None:
    if not _is_ours.get():
        raise ParallelError(
            f"state_dict of the wrapped model was called, and parameters of a {type(module).__name__} in it lie on "
            "other ranks: call state_dict() of the DistributedModel on every rank, which gathers them, or "
            "local_state_dict() for this rank's part; save_pretrained takes such a state as state_dict="
        )
