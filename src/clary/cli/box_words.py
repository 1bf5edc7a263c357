"""Texts on boxes, from their facts and the service's page. Pure.

Where: `hosts` and `join`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GIB = 1024**3
CLOCK_LIMIT_S = 2.0  # larger differences of clocks may reverse the order of causes


def shape_words(facts: Mapping[str, Any]) -> str:
    """Return `8 CPUs, 62 GiB, no GPUs, namespaces`."""
    cpus, gpus = facts["num_cpus"], facts["gpus"]
    parts = [
        "1 CPU" if cpus == 1 else f"{cpus} CPUs",
        f"{facts['memory_bytes'] / GIB:.0f} GiB",
        "GPUs not known yet" if gpus is None else {0: "no GPUs", 1: "1 GPU"}.get(len(gpus), f"{len(gpus)} GPUs"),
        str(facts["isolation"]),
    ]
    return ", ".join(parts)


def box_row(box: Mapping[str, Any], daemon: str) -> tuple[str, ...]:
    """Return the cells of one box: name, state, CPUs, memory, GPUs, isolation, jobs, and a note.

    Args:
        box: the box on the service's page.
        daemon: digest of the daemon that this command would install.
    """
    runs = ", ".join(f"{run['job']} {run['host']}{' (ending)' if run['is_ending'] else ''}" for run in box["runs"])
    return (
        box["name"],
        box["state"],
        str(box["num_cpus"]),
        f"{box['memory_bytes'] / GIB:.0f} GiB",
        "?" if box["gpus"] is None else str(len(box["gpus"])),
        box["isolation"],
        runs or "-",
        box_note(box, daemon),
    )


def box_note(box: Mapping[str, Any], daemon: str) -> str:
    """Return a note for the owner of a box.

    Args:
        box: the box on the service's page.
        daemon: digest of the daemon that this command would install.
    """
    if box["why"]:
        return str(box["why"])
    if box["daemon"] and box["daemon"] != daemon:
        return "another version of the daemon; repeat clary hosts add to replace it, jobs go on"
    return ""


def clock_ahead_s(told_s: float, *, began_s: float, ended_s: float) -> float:
    """Return by how many seconds a box's clock is ahead at least; negative if it is behind.

    Args:
        told_s: time of the box's clock, read between the two times of this machine's clock.
        began_s: before the box was asked.
        ended_s: after it had answered.
    """
    return max(0.0, told_s - ended_s) + min(0.0, told_s - began_s)


def clock_words(name: str, ahead_s: float) -> str:
    """Return a warning if the box's clock differs from this machine's clock by more than CLOCK_LIMIT_S; else empty.

    Args:
        name: name of the box.
        ahead_s: seconds by which the box's clock is ahead of this machine's clock.
    """
    if abs(ahead_s) <= CLOCK_LIMIT_S:
        return ""
    side = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"{name}: its clock is {abs(ahead_s):.0f} s {side} this machine's; the first failure is found by time, so "
        "have NTP set the clock"
    )
