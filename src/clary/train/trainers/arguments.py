"""Replacement of the method in which `transformers.TrainingArguments` chooses the process's device, in all versions.

Source: transformers 4.28, 4.37, 4.46 and 5.24 `TrainingArguments._setup_devices`, a cached property.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

_PLACE = "_setup_devices"

Choose = Callable[[Any, Callable[[Any], Any]], Any]


def choose_devices_by(module: ModuleType, choose: Choose) -> None:
    """Patch TrainingArguments so that the function `choose` returns the device.

    Args:
        module: `transformers.training_args`; not changed if it lacks the method.
        choose: takes the arguments and the original method; returns the `torch.device`.
    """
    arguments = getattr(module, "TrainingArguments", None)
    found = vars(arguments).get(_PLACE) if arguments is not None else None
    # cached property: Python's or transformers' own
    original = getattr(found, "func", None) or getattr(found, "fget", None)
    if original is None:
        return

    @functools.wraps(original)
    def set_up(self: Any) -> Any:
        return choose(self, original)

    kind: Any = type(found)
    place = kind(set_up)
    if hasattr(place, "__set_name__"):
        place.__set_name__(arguments, _PLACE)
    setattr(arguments, _PLACE, place)
