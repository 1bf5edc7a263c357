"""Replacement of torch functions under every name in every module outside of Clary.

Where: `clipping` and `fsdp.mistakes` call it. Otherwise a script that imports a function by name before it makes a
model would keep torch's function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_OWN = "clary."  # prefix of modules in which names are not replaced


def replace_everywhere(original: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Replace a function by another under every name in every module outside of Clary."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict) or str(names.get("__name__")).startswith(_OWN):
            continue
        for name in [name for name, value in list(names.items()) if value is original]:
            names[name] = other
