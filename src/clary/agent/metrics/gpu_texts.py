"""Parsers for nvidia-smi's output and for the kernel's log about GPUs. Pure.

Where: `gpu_source` reads the output, `xid_log` the log. No GPU was available: the format of the lines is from NVIDIA's
documentation and from other people's recorded output.
Source: `nvidia-smi --help-query-gpu`; NVML's nvmlClocksEventReasons (nvmlClocksThrottleReasons
before driver 535); "XID Errors" of NVIDIA's documentation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

QUERY = (
    "index",
    "pci.bus_id",
    "utilization.gpu",
    "utilization.memory",
    "memory.used",
    "memory.total",
    "power.draw",
    "temperature.gpu",
    "clocks.sm",
    "clocks_event_reasons.active",
    "ecc.errors.uncorrected.volatile.total",
)
# Names for drivers before 535; with an unknown name a driver prints no values at all.
OLDER_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
_MIB = 1024 * 1024
# Bits of the reasons that count: slowdown by hardware, by heat (software, hardware), power brake. The power limit is
# separate, because a busy GPU usually reaches it. Idleness, configured clocks and the boost of a group of GPUs do not
# count as throttling.
_THROTTLING_BITS = 0x8 | 0x20 | 0x40 | 0x80
_POWER_CAP_BIT = 0x4
# `3,17,4711,-;NVRM: Xid (PCI:0000:65:00): 79, ...`. The first number is 8 * facility + level; the kernel's facility is
# 0, which programs cannot use.
_XID = re.compile(r"[0-7],[^;]*;NVRM: Xid \(PCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): (\d{1,4})\b")


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """One GPU at one moment."""

    index: int  # index in the driver's order
    bus: str  # in the form of `bus_of`
    values: dict[str, float]  # quantity -> value, for quantities that the GPU has


def parse_gpu_line(line: str) -> GpuReading | None:
    """Parse a line of nvidia-smi with `QUERY`, without header and units; None for any other line."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(QUERY) or not cells[0].isdigit():
        return None
    said = dict(zip(QUERY, map(_number, cells), strict=True))
    values: dict[str, float | None] = {
        "utilisation_percent": said["utilization.gpu"],
        "memory_utilisation_percent": said["utilization.memory"],
        "memory_used_bytes": _times(said["memory.used"], _MIB),
        "memory_total_bytes": _times(said["memory.total"], _MIB),
        "power_w": said["power.draw"],
        "temperature_c": said["temperature.gpu"],
        "clock_mhz": said["clocks.sm"],
        "throttle_reasons": said["clocks_event_reasons.active"],
        "ecc_uncorrected_errors": said["ecc.errors.uncorrected.volatile.total"],
    }
    used, total = values["memory_used_bytes"], values["memory_total_bytes"]
    if used is not None and total:
        values["memory_percent"] = round(100.0 * used / total, 2)
    reasons = values["throttle_reasons"]
    if reasons is not None:
        values["throttled"] = float(bool(int(reasons) & _THROTTLING_BITS))
        values["power_capped"] = float(bool(int(reasons) & _POWER_CAP_BIT))
    known = {name: value for name, value in values.items() if value is not None}
    return GpuReading(index=int(cells[0]), bus=bus_of(cells[1]), values=known)


def parse_xid(record: str) -> tuple[str, int] | None:
    """Return bus and code of a record in the kernel's log that reports an Xid.

    Return None for any other record, including an imitation that a program has written.
    """
    found = _XID.match(record)
    return None if found is None else (bus_of(found[1]), int(found[2]))


def bus_of(text: str) -> str:
    """Normalise a bus id: drivers print the domain with four or eight digits, with or without the function."""
    parts = text.strip().lower().partition(".")[0].split(":")
    return ":".join(part.lstrip("0") or "0" for part in parts)


def _number(cell: str) -> float | None:
    """Parse a number, decimal or 0x...; None for "[N/A]" and other texts."""
    try:
        return float(int(cell, 16)) if cell.lower().startswith("0x") else float(cell)
    except ValueError:
        return None


def _times(value: float | None, factor: int) -> float | None:
    return None if value is None else value * factor
