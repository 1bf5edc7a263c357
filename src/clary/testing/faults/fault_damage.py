"""A fault that has struck, and the function that repairs its damage."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from clary.testing.faults.fault_plan import Fault

T = TypeVar("T")


@dataclass
class Damage:
    """A fault that has struck."""

    fault: Fault
    target: str  # description of the target
    jobs: tuple[str, ...]  # the jobs that it was aimed at; empty if all jobs can be affected
    mend_at_s: float
    mend: Callable[[], object]


def damage_of(fault: Fault, target: str, *, job_name: str = "", mend: Callable[[], object] | None = None) -> Damage:
    """Return the damage of a fault that has just struck; without `mend` the damage ends at once.

    Args:
        fault: the fault.
        target: description of the target; the job's name is appended.
        job_name: job that the fault is aimed at; empty if all jobs can be affected.
        mend: ends the fault after its duration.
    """
    mend_at_s = time.monotonic() + (fault.duration_s if mend is not None else 0.0)
    jobs = (job_name,) if job_name else ()
    return Damage(fault, f"{target} {job_name}".strip(), jobs, mend_at_s, mend or (lambda: None))


def choose(items: Sequence[T], fault: Fault) -> T | None:
    """Return the item that the plan's choice selects; None if there are no items."""
    return items[int(fault.choice * len(items))] if items else None
