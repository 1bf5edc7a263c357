"""Results of a run of faults: counts by kind, as a table and as JSON lines. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from clary.testing.faults.fault_fleet import Strike
from clary.testing.faults.fault_ledger import Harm, Violation
from clary.testing.faults.fault_plan import FaultKind


@dataclass(frozen=True, kw_only=True)
class KindCounts:
    """Faults of one kind, and their harm; a fault without harm counts as survived."""

    kind: str
    injected: int
    survived: int
    lost: int
    doubled: int
    hung: int

    @property
    def is_clean(self) -> bool:
        """Whether the faults caused no loss, duplicate or hang."""
        return not (self.lost or self.doubled or self.hung)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run."""

    seed: int
    counts: tuple[KindCounts, ...]  # one per kind that has struck, in the order of FaultKind
    statuses: dict[str, int]  # of jobs
    violations: tuple[str, ...]
    wall_s: float
    num_tuned: int = 0  # tuning jobs that were audited after their end

    @property
    def total(self) -> KindCounts:
        """Sums over all kinds."""
        return KindCounts(
            kind="all",
            injected=sum(item.injected for item in self.counts),
            survived=sum(item.survived for item in self.counts),
            lost=sum(item.lost for item in self.counts),
            doubled=sum(item.doubled for item in self.counts),
            hung=sum(item.hung for item in self.counts),
        )

    @property
    def is_clean(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    def json_lines(self) -> str:
        """Return one JSON object per kind, and one for all kinds together."""
        return "\n".join(json.dumps({"seed": self.seed, **asdict(item)}) for item in (*self.counts, self.total))

    def table(self) -> str:
        """Return the counts as a text table."""
        rows = [f"{'kind':<20} {'injected':>8} {'survived':>8} {'lost':>6} {'doubled':>8} {'hung':>6}"]
        rows += [
            f"{item.kind:<20} {item.injected:>8} {item.survived:>8} {item.lost:>6} {item.doubled:>8} {item.hung:>6}"
            for item in (*self.counts, self.total)
        ]
        jobs = ", ".join(f"{count} {status}" for status, count in sorted(self.statuses.items()))
        tuned = f"{self.num_tuned} tuning jobs"
        return "\n".join(
            [*rows, f"{sum(self.statuses.values())} jobs: {jobs}; {tuned}; {self.wall_s:.0f} s, seed {self.seed}"]
        )


def count_by_kind(
    strikes: Sequence[Strike], violations: Sequence[tuple[Violation, Strike | None]]
) -> tuple[KindCounts, ...]:
    """Return the counts of every kind that has struck; violations before any fault have the kind `none`."""
    injected = Counter(strike.kind.value for strike in strikes)
    harmful = {strike.number: strike.kind.value for _, strike in violations if strike is not None}
    harmed = Counter(harmful.values())
    harms = Counter((strike.kind.value if strike is not None else "none", item.harm) for item, strike in violations)
    kinds = [kind.value for kind in FaultKind if kind.value in injected]
    if any(strike is None for _, strike in violations):
        kinds.append("none")
    return tuple(
        KindCounts(
            kind=kind,
            injected=injected[kind],
            survived=injected[kind] - harmed[kind],
            lost=harms[kind, Harm.LOST],
            doubled=harms[kind, Harm.DOUBLED],
            hung=harms[kind, Harm.HUNG],
        )
        for kind in kinds
    )
