"""A fault that has struck, with the function that mends it."""

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
    target: str  # in words
    jobs: tuple[str, ...]  # the jobs that it was aimed at; empty if it was aimed at no job in particular
    mend_at_s: float
    mend: Callable[[], object]


def damage_of(fault: Fault, target: str, *, job_name: str = "", mend: Callable[[], object] | None = None) -> Damage:
    """Return the damage of a fault that strikes now; without `mend` it ends at once.

    Args:
        fault: that strikes.
        target: in words; the job's name is added.
        job_name: of the job that it is aimed at; empty without a single target.
        mend: ends the fault after its duration.
    """
    mend_at_s = time.monotonic() + (fault.duration_s if mend is not None else 0.0)
    jobs = (job_name,) if job_name else ()
    return Damage(fault, f"{target} {job_name}".strip(), jobs, mend_at_s, mend or (lambda: None))


def choose(items: Sequence[T], fault: Fault) -> T | None:
    """Return the possible target that the plan chose."""
    return items[int(fault.choice * len(items))] if items else None
