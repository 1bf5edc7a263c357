"""The choice of a group's core: the compiled core if it was built, else the slow reference.

Where: `bootstrap.group` publishes the kind of core, so that no group mixes kinds; `communicator` and the adapters open
cores. The compiled core is loaded at its first use, not at import.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from functools import cache
from typing import cast

from clary.contract.collective_records import NUM_ROWS, GroupFacts
from clary.train._native import core as native_core
from clary.train._native.errors import CoreError
from clary.train._native.interface import Core, GroupConnections
from clary.train.collective import trace
from clary.train.collective.settings import CollectiveSettings
from clary.train.collective.traced_core import TracedCore
from clary.train.operation_record import record_of_process

NATIVE = "native"
REFERENCE = "reference"
KIND = "smddp"  # kind of backend in the records of a group's operations


def core_kind(settings: CollectiveSettings) -> str:
    """Return the settings' choice of core; by default NATIVE if it is built, else REFERENCE with a warning.

    Raises: CoreError if the settings demand the compiled core and it is not available.
    """
    if settings.core == REFERENCE:
        return REFERENCE
    reason = native_core.unavailable_reason()
    if reason is None:
        return NATIVE
    if settings.core == NATIVE:
        raise CoreError(f"CLARY_COLLECTIVE_CORE is native, but {reason}. {_HOW_TO_BUILD}", retryable=False)
    _warn_of_slowness(reason)
    return REFERENCE


def has_native_core(settings: CollectiveSettings) -> bool:
    """Return whether groups of this process use the compiled core. Unlike `core_kind` it warns of nothing."""
    return settings.core != REFERENCE and native_core.unavailable_reason() is None


def open_core(connections: GroupConnections, settings: CollectiveSettings | None = None) -> Core:
    """Open a core over connections; the core takes ownership of their descriptors.

    Args:
        settings: settings with which the connections were made; None reads the environment again.

    Raises: CollectiveError if the core cannot start, ValueError for an invalid variable, OSError if a trace cannot be
        written; then the descriptors are closed.
    """
    try:
        settings = settings or CollectiveSettings.from_environment(os.environ)
        kind = core_kind(settings)
        writer = trace.writer_of_process(settings.trace, connections.rank)
    except (CoreError, ValueError, OSError):
        for descriptor in (connections.segment_fd, *connections.lane_fds, *connections.side_fds):
            if descriptor >= 0:
                os.close(descriptor)
        raise
    core = _open(kind, connections)
    return core if writer is None else cast("Core", TracedCore(core, writer, connections.name))


def _open(kind: str, connections: GroupConnections) -> Core:
    if kind == NATIVE:
        native = native_core.NativeCore(connections)
        _record(native, connections)
        return native
    # imported late: saves 12 ms if the compiled core exists
    from clary.train._native.reference import ReferenceCore

    return ReferenceCore(connections)


def _record(core: native_core.NativeCore, connections: GroupConnections) -> None:
    """Make a core record its operations for the agent, if the agent requests records."""
    record = record_of_process(connections.rank)
    if record is None:
        return
    facts = GroupFacts(name=connections.name, kind=KIND, size=connections.size, rank=connections.rank)
    rows = record.begin_group(facts)
    if rows is not None:
        core.record(ctypes.addressof(ctypes.c_char.from_buffer(record.memory, rows)), NUM_ROWS)


_HOW_TO_BUILD = (
    "Build it in Clary's source tree with `cmake -S . -B build/native -G Ninja && cmake --build build/native && "
    "cmake --install build/native --prefix src`"
)


@cache
def _warn_of_slowness(reason: str) -> None:
    """Warn once per process."""
    warnings.warn(
        f"collectives run on the reference core in plain Python, which is slow: {reason}. {_HOW_TO_BUILD}; "
        f"CLARY_COLLECTIVE_CORE=reference says that this is meant",
        RuntimeWarning,
        stacklevel=2,
    )
