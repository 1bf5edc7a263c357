"""Shapes of instance types: vCPUs, memory, GPUs and network of the real ones, and what stands for unknown ones.

Where: `placement.map_hosts` turns shapes into shares of this machine. `instance_types.json` is written by
`tools/make_instance_types.py`. Any name is accepted: `local` and `local_gpu` are this machine, a name that says how
many GPUs it has (`ml.mybox.8gpu`) is believed, any other gets a small generic shape; `explanation` says which.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from clary.contract.errors import ContractError, Fault
from clary.contract.launch_plan import Link
from clary.control.scheduling.machine import Machine

LOCAL = "local"
LOCAL_GPU = "local_gpu"
GIB = 1024**3

# What stands for a type that nobody knows: an xlarge of a general family, per GPU a g5.xlarge.
GENERIC_CPUS = 4
GENERIC_MEMORY_GIB_PER_CPU = 4
GENERIC_NETWORK_MBIT_S = 10_000

CPUS_PER_XLARGE = 4
MAX_COUNT_IN_NAME = 1024  # a larger number in a name is no count of GPUs or of xlarges

OVERRIDES = {
    "gpus": "GPUs",
    "cpus": "CPUs",
    "memory_gib": "memory in GiB",
    "processes": "processes per host",
    "rate_mbit_s": "rate of the network link in Mbit/s",
    "delay_ms": "one-way delay of the network link in ms",
    "loss_percent": "packets lost on the network link in percent",
}

_GPUS_IN_NAME = re.compile(r"(?<![0-9])([0-9]{1,4})[-_x]?gpus?(?![a-z])", re.IGNORECASE)
_SIZE_IN_NAME = re.compile(r"\.(?:([0-9]{1,3})?xlarge|(large|medium))$")


@dataclass(frozen=True, kw_only=True)
class InstanceShape:
    """What one instance of a type has."""

    name: str
    num_cpus: int
    memory_bytes: int
    num_gpus: int = 0
    num_accelerators: int = 0  # NeuronCores
    network_mbit_s: int = 0  # as advertised; the link is shaped only where settings ask for it
    is_known: bool = True
    explanation: str = ""  # where the shape comes from, when that is not the catalogue
    processes: int | None = None  # processes per host, when settings name them
    link: Link = field(default_factory=Link)  # from settings

    @property
    def processes_per_host(self) -> int:
        """What the official toolkits start on a host of this type: one process a GPU, NeuronCore, or one."""
        return self.processes or self.num_gpus or self.num_accelerators or 1


def lookup(
    instance_type: str, overrides: Mapping[str, Mapping[str, Any]] | None = None, *, machine: Machine
) -> InstanceShape:
    """Return the shape of `instance_type`; no name is refused.

    Args:
        instance_type: as the request gave it.
        overrides: setting `instance_types`: a table per type with the keys of `OVERRIDES`.
        machine: what `local` and `local_gpu` stand for.
    Raises: ContractError naming the setting, its value and what was expected.
    """
    shape = _from_name(instance_type, machine)
    override = (overrides or {}).get(instance_type)
    return _overridden(shape, override) if override else shape


def known_types() -> tuple[str, ...]:
    """Return the names of the catalogue, sorted."""
    return tuple(sorted(_catalogue()))


@cache
def _catalogue() -> Mapping[str, Mapping[str, Any]]:
    text = resources.files("clary.control.scheduling").joinpath("instance_types.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def _from_name(name: str, machine: Machine) -> InstanceShape:
    if name in (LOCAL, LOCAL_GPU):
        num_gpus = machine.num_gpus if name == LOCAL_GPU else 0
        return InstanceShape(
            name=name,
            num_cpus=machine.num_cpus,
            memory_bytes=machine.memory_bytes,
            num_gpus=num_gpus,
            explanation=f"{name} is this machine: {replace(machine, num_gpus=num_gpus)}",
        )
    row = _catalogue().get(name)
    if row is not None:
        explanation = f"{name}: no public figures, the shape is an estimate" if row.get("is_estimated") else ""
        return InstanceShape(
            name=name,
            num_cpus=row["cpus"],
            memory_bytes=int(row["memory_gib"] * GIB),
            num_gpus=row["gpus"],
            num_accelerators=row["accelerators"],
            network_mbit_s=row["network_mbit_s"],
            explanation=explanation,
        )
    return _unknown(name)


def _unknown(name: str) -> InstanceShape:
    """Read what an unknown name says: a number of GPUs, a size in xlarges, or nothing."""
    gpus_match, size_match = _GPUS_IN_NAME.search(name), _SIZE_IN_NAME.search(name)
    num_gpus = int(gpus_match.group(1)) if gpus_match else 0
    num_cpus = GENERIC_CPUS
    if 0 < num_gpus <= MAX_COUNT_IN_NAME:
        num_cpus = GENERIC_CPUS * num_gpus
        said = f"its name says {num_gpus} GPU{'s' if num_gpus > 1 else ''}"
    elif size_match:
        num_gpus = 0
        xlarges = int(size_match.group(1) or 1)
        num_cpus = max(2, CPUS_PER_XLARGE * xlarges) if size_match.group(2) is None else 2
        said = "its size is read from its name, without GPUs"
    else:
        num_gpus = 0
        said = "a generic shape without GPUs stands for it"
    return InstanceShape(
        name=name,
        num_cpus=num_cpus,
        memory_bytes=num_cpus * GENERIC_MEMORY_GIB_PER_CPU * GIB,
        num_gpus=num_gpus,
        network_mbit_s=GENERIC_NETWORK_MBIT_S,
        is_known=False,
        explanation=f"{name} is not in the catalogue: {said}; "
        f'to change that, set gpus, cpus or memory_gib in [instance_types."{name}"] of settings.toml',
    )


def _overridden(shape: InstanceShape, override: Mapping[str, Any]) -> InstanceShape:
    for key in override:
        if key not in OVERRIDES:
            raise _setting_error(shape.name, key, "one of " + ", ".join(OVERRIDES), "an unknown key")
    rate = _number(shape.name, override, "rate_mbit_s", low=0.001)
    loss = _number(shape.name, override, "loss_percent", low=0, high=100)
    memory_gib = _number(shape.name, override, "memory_gib", low=0.001)
    cpus, gpus = _count(shape.name, override, "cpus", low=1), _count(shape.name, override, "gpus", low=0)
    processes = _count(shape.name, override, "processes", low=1)
    said = ", ".join(f"{OVERRIDES[key]} {value}" for key, value in override.items())
    explanation = f"{shape.name}: settings say {said}"
    return replace(
        shape,
        num_cpus=shape.num_cpus if cpus is None else cpus,
        num_gpus=shape.num_gpus if gpus is None else gpus,
        memory_bytes=shape.memory_bytes if memory_gib is None else int(memory_gib * GIB),
        processes=processes,
        link=Link(
            rate_mbit_s=rate,
            delay_ms=_number(shape.name, override, "delay_ms", low=0) or 0.0,
            loss_percent=loss or 0.0,
        ),
        is_known=shape.is_known or gpus is not None or cpus is not None,
        explanation=f"{shape.explanation}; {explanation}" if shape.is_known and shape.explanation else explanation,
    )


def _number(name: str, override: Mapping[str, Any], key: str, *, low: float, high: float = math.inf) -> float | None:
    value = override.get(key)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or math.isinf(value):
        wanted = f"a number from {low:g}" + ("" if math.isinf(high) else f" to {high:g}")
        raise _setting_error(name, key, wanted, repr(value))
    return float(value)


def _count(name: str, override: Mapping[str, Any], key: str, *, low: int) -> int | None:
    value = override.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MAX_COUNT_IN_NAME:
        raise _setting_error(name, key, f"a whole number from {low} to {MAX_COUNT_IN_NAME}", repr(value))
    return value


def _setting_error(name: str, key: str, wanted: str, got: str) -> ContractError:
    return ContractError(
        f'settings.toml, [instance_types."{name}"], {key}: expected {wanted}, got {got}', fault=Fault.USER
    )
