"""Functions of torch replaced under all names that modules have for them.

Where: `clipping` and `fsdp.mistakes`. A script that imports a function by its name before it makes a model would go on
with torch's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_OWN = "clary."  # modules that keep what they have


def replace_everywhere(original: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Have every module that has a function under some name have another under it."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict) or str(names.get("__name__")).startswith(_OWN):
            continue
        for name in [name for name, value in list(names.items()) if value is original]:
            names[name] = other
