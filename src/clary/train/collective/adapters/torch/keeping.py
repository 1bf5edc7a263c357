"""Keeps Work objects alive for C++ in versions of torch that do not.

Where: `collectives` and `staging` hand the Work objects that they make to `keep`; an object is dropped after a call of
its `wait` or `get_future`. C++ callers hold only the C++ half of a Work object. When the Python half is
garbage-collected, calls reach the methods of the base class, whose `wait` never ends. torch holds both halves
(PyWorkHolder) since some version after 2.6; this module can be removed when that version is the oldest supported one.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed import Work

_TRAMPOLINE = "include/torch/csrc/distributed/c10d/PyProcessGroup.hpp"
_MAX_KEPT = 4096  # works without a waiter; at the limit, ended works are dropped


def _torch_holds_works() -> bool:
    """Return whether the header in torch's wheel has PyWorkHolder. False without the header: this costs only memory."""
    try:
        return "PyWorkHolder" in (Path(torch.__file__).parent / _TRAMPOLINE).read_text(
            encoding="utf-8", errors="replace"
        )
    except OSError:
        return False


IS_NEEDED = not _torch_holds_works()
_kept: dict[int, Work] = {}


def keep(work: Work) -> None:
    """Keep a work until `let_go`."""
    if len(_kept) >= _MAX_KEPT:
        for key, old in list(_kept.items()):
            if old.is_completed():
                _kept.pop(key, None)
    _kept[id(work)] = work


def let_go(work: Work) -> None:
    """Stop keeping a work."""
    _kept.pop(id(work), None)
