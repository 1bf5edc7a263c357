"""Shapes of instance types: vCPUs, memory, GPUs and network of the real types, and substitutes for unknown types.

Where: `placement.map_hosts` turns shapes into shares of this machine. `instance_types.json` is written by
`tools/make_instance_types.py`. Any name is accepted: `local` and `local_gpu` are this machine. An unknown name that
contains a number of GPUs (`ml.mybox.8gpu`) gets that number of GPUs, one that ends in a size (`ml.x.4xlarge`) the
vCPUs of that size, and any other name a small generic shape. The field `explanation` of a shape names the choice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from clary.contract.launch_plan import Link
from clary.control.scheduling.machine import Machine
from clary.control.settings import SETTINGS_FILE
from clary.control.type_overrides import OVERRIDES, check_override

LOCAL = "local"
LOCAL_GPU = "local_gpu"
GIB = 1024**3

# Shape of an unknown type: an xlarge of a general family; with GPUs, a g5.xlarge for each.
GENERIC_CPUS = 4
GENERIC_MEMORY_GIB_PER_CPU = 4
GENERIC_NETWORK_MBIT_S = 10_000

CPUS_PER_XLARGE = 4
NEARNESS = 0.85  # cutoff of difflib: one or two different letters
_MAX_CACHED_NAMES = 256
MAX_COUNT_IN_NAME = 1024  # a larger number in a name does not count as a number of GPUs

_GPUS_IN_NAME = re.compile(r"(?<![0-9])([0-9]{1,4})[-_x]?gpus?(?![a-z])", re.IGNORECASE)
_SIZE_IN_NAME = re.compile(r"\.(?:([0-9]{1,3})?xlarge|(large|medium))$")


@dataclass(frozen=True, kw_only=True)
class InstanceShape:
    """Resources of one instance of a type."""

    name: str
    num_cpus: int
    memory_bytes: int
    num_gpus: int = 0
    num_accelerators: int = 0  # NeuronCores
    network_mbit_s: int = 0  # advertised rate; only settings limit the link
    is_known: bool = True
    explanation: str = ""  # origin of the shape, if it is not public figures of the catalogue
    processes: int | None = None  # processes per host, if the settings name a number
    link: Link = field(default_factory=Link)  # from settings

    @property
    def processes_per_host(self) -> int:
        """Processes on a host of this type: the settings' number, else one per GPU or NeuronCore, else one.

        Without a number from the settings, this is the number that the official toolkits start.
        """
        return self.processes or self.num_gpus or self.num_accelerators or 1


def lookup(
    instance_type: str, overrides: Mapping[str, Mapping[str, Any]] | None = None, *, machine: Machine
) -> InstanceShape:
    """Return the shape of `instance_type`; every name has a shape.

    Args:
        instance_type: name in the request.
        overrides: setting `instance_types`: a table per type with the keys of `type_overrides.OVERRIDES`.
        machine: machine that `local` and `local_gpu` name.
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


@lru_cache(maxsize=_MAX_CACHED_NAMES)
def _unknown(name: str) -> InstanceShape:
    """Parse an unknown name: a number of GPUs, a size in xlarges, or nothing.

    Cached, because the search for a similar name takes 1 to 7 ms, and each look at a waiting job asks for its type.
    """
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
    near = get_close_matches(name, known_types(), n=1, cutoff=NEARNESS)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return InstanceShape(
        name=name,
        num_cpus=num_cpus,
        memory_bytes=num_cpus * GENERIC_MEMORY_GIB_PER_CPU * GIB,
        num_gpus=num_gpus,
        network_mbit_s=GENERIC_NETWORK_MBIT_S,
        is_known=False,
        explanation=f"{name} is not in the catalogue{meant}: {said}; "
        f'to change that, set gpus, cpus or memory_gib in [instance_types."{name}"] of settings.toml',
    )


def _overridden(shape: InstanceShape, override: Mapping[str, Any]) -> InstanceShape:
    check_override(shape.name, override, source=SETTINGS_FILE)
    memory_gib, rate_mbit_s = override.get("memory_gib"), override.get("rate_mbit_s")
    said = ", ".join(f"{OVERRIDES[key].about} {value}" for key, value in override.items())
    explanation = f"{shape.name}: settings say {said}"
    return replace(
        shape,
        num_cpus=override.get("cpus", shape.num_cpus),
        num_gpus=override.get("gpus", shape.num_gpus),
        memory_bytes=shape.memory_bytes if memory_gib is None else int(memory_gib * GIB),
        processes=override.get("processes"),
        link=Link(
            rate_mbit_s=None if rate_mbit_s is None else float(rate_mbit_s),
            delay_ms=float(override.get("delay_ms", 0)),
            loss_percent=float(override.get("loss_percent", 0)),
        ),
        is_known=shape.is_known or "gpus" in override or "cpus" in override,
        explanation=f"{shape.explanation}; {explanation}" if shape.is_known and shape.explanation else explanation,
    )
