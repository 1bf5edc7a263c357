"""A fault that has struck, and how it is mended."""

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
    jobs: tuple[str, ...]  # that it was aimed at; empty if it was aimed at none in particular
    mend_at_s: float
    mend: Callable[[], object]


def damage_of(fault: Fault, target: str, *, job_name: str = "", mend: Callable[[], object] | None = None) -> Damage:
    """Return the damage of a fault that strikes now; without `mend` it is over at once.

    Args:
        fault: what.
        target: whom, in words; the job's name is added.
        job_name: whom it is aimed at; empty if there is no single target.
        mend: what ends it after its duration.
    """
    mend_at_s = time.monotonic() + (fault.duration_s if mend is not None else 0.0)
    jobs = (job_name,) if job_name else ()
    return Damage(fault, f"{target} {job_name}".strip(), jobs, mend_at_s, mend or (lambda: None))


def choose(items: Sequence[T], fault: Fault) -> T | None:
    """Return the one of the possible targets that the plan chose."""
    return items[int(fault.choice * len(items))] if items else None
