"""Keys that settings may give for an instance type, and the check of their values.

Where: `settings` checks `[instance_types."ml.x"]` when it reads the file, so that a wrong key
prevents the start of the service, not the creation of a job; `scheduling.catalogue` replaces the type's values by the
table's values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clary.base.errors import ContractError, Fault

MAX_COUNT = 1024  # maximum number of GPUs, CPUs or processes; a larger number is a mistake


@dataclass(frozen=True)
class OverrideKey:
    """One key: its meaning, and the range of its values, both ends included."""

    about: str
    least: float
    most: float = math.inf
    is_count: bool = False  # a whole number


OVERRIDES: Mapping[str, OverrideKey] = {
    "gpus": OverrideKey("GPUs", 0, MAX_COUNT, is_count=True),
    "cpus": OverrideKey("CPUs", 1, MAX_COUNT, is_count=True),
    "memory_gib": OverrideKey("memory in GiB", 0.001),
    "processes": OverrideKey("processes per host", 1, MAX_COUNT, is_count=True),
    "rate_mbit_s": OverrideKey("rate of the network link in Mbit/s", 0.001),
    "delay_ms": OverrideKey("one-way delay of the network link in ms", 0),
    "loss_percent": OverrideKey("packets lost on the network link in percent", 0, 100),
}


def check_override(instance_type: str, override: Mapping[str, Any], *, source: str) -> None:
    """Refuse an unknown key, or an invalid value.

    Args:
        instance_type: type that the values apply to.
        override: keys and values of the type's table.
        source: file that holds the table, named in the error.
    Raises: ContractError naming file, type and key, with the expected and the given value.
    """
    for name, value in override.items():
        key = OVERRIDES.get(name)
        if key is None:
            raise _error(instance_type, name, f"one of {', '.join(OVERRIDES)}", "an unknown key", source)
        if not _is_within(value, key):
            kind = "a whole number" if key.is_count else "a number"
            wanted = f"{kind} from {key.least:g}" + ("" if math.isinf(key.most) else f" to {key.most:g}")
            raise _error(instance_type, name, wanted, repr(value), source)


def _is_within(value: Any, key: OverrideKey) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if key.is_count else int | float):
        return False
    return key.least <= value <= key.most and not math.isinf(value)


def _error(instance_type: str, key: str, wanted: str, got: str, source: str) -> ContractError:
    return ContractError(
        f'{source}: [instance_types."{instance_type}"], {key}: expected {wanted}, got {got}', fault=Fault.USER
    )
