"""Finds the rank that the others wait for, and the reason: compute, input or network. Pure.

Where: `server.pages.stragglers_page` and `reconcile.job_stragglers` gather the hosts' measurements
(`agent.metrics.step_source`) and call it.

[Note: who is slow]
Ranks that train together have steps of the same length: a slow rank works longer, and the others wait in collectives
for the difference. So each rank's own time is compared, its step minus its communication. The slowest is a straggler if
it works a tenth of a step longer than the others by the medians, and a twentieth longer at two thirds of the moments.

    compute   its passes, optimizer or other work takes longer, or its host is refused processor time
    input     most of the difference is waiting for batches
    network   all work equally long and much of each step is communication, which is slow at one host: its round trips
              take far longer than those of the others, or much of its traffic gets lost

No rank is accused if all ranks are equally slow, or if communication is long but not slow at one host.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

LEAST_SHARE = 0.1  # share of a step by which a straggler works longer than the others
CLEAR_SHARE = 0.2
MOST_STEPS_APART = 1.5  # largest ratio of a rank's mean step to the median of the others
LEAST_MOMENTS = 3  # moments at which at least two ranks were measured
LEAST_VOTES, CLEAR_VOTES = 2 / 3, 0.9  # share of the moments at which a straggler was slow by half of LEAST_SHARE
# percent of one processor by which a host is refused more than the other hosts are
REFUSED_PERCENT = 20.0
LEAST_COMMUNICATION = 0.2  # communication's share of a step from which on the network is examined
RTT_FACTOR, CLEAR_RTT_FACTOR = 4.0, 10.0
RTT_EXCESS_MS = 2.0  # hosts of one job are a fraction of a millisecond apart
PAIR_RTT_MS = 10.0  # for jobs of two hosts, where no third host allows a comparison
RESENT_PERCENT, RESENT_FACTOR = 1.0, 5.0  # share of segments; any busy link resends a fraction of a percent
SHORT_S = 0.1  # shorter spans are shown in milliseconds
_MS_PER_S = 1000

PARTS = ("data_wait_s", "forward_s", "backward_s", "communication_s", "optimizer_s")
_BEHIND = ", as far as programs show it: what their GPUs wait for, `clary profile` shows"
_WORDS = {
    "data_wait_s": "waiting for batches",
    "forward_s": "forward passes",
    "backward_s": "backward passes",
    "optimizer_s": "the optimizer",
    "other_s": "what is outside of data, passes and optimizer",
}


class StragglerKind(StrEnum):
    """Cause of a job's slow steps: one host, or the network between hosts."""

    COMPUTE = "compute"
    INPUT = "input"
    NETWORK = "network"
    NOBODY = "nobody"
    UNKNOWN = "unknown"  # too few measurements


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Mean seconds of a rank's steps that ended around one moment."""

    step_s: float
    data_wait_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    communication_s: float = 0.0
    optimizer_s: float = 0.0

    @property
    def own_s(self) -> float:
        """Seconds of the rank's own time: the step minus its communication."""
        return max(0.0, self.step_s - self.communication_s)

    @property
    def other_s(self) -> float:
        """Seconds outside of all parts."""
        parts_s: float = sum(getattr(self, part) for part in PARTS)
        return max(0.0, self.step_s - parts_s)


@dataclass(frozen=True, kw_only=True)
class RankSteps:
    """Step times of one rank over a stretch of time.

    Attributes:
        moments: number of a moment -> times. A number means the same moment for all ranks: milliseconds since 1970, or
            the index of a part of the measured time. A rank lacks moments at which it was not measured.
    """

    rank: int
    host: str
    moments: Mapping[int, StepTimes]

    def usual(self) -> StepTimes:
        """Return the medians over the moments, which ignore occasional checkpoints."""
        times = list(self.moments.values())
        medians = {name: statistics.median(getattr(item, name) for item in times) for name in ("step_s", *PARTS)}
        return StepTimes(**medians)

    def mean_step_s(self) -> float:
        """Return the mean over the moments, which includes occasional waits."""
        return statistics.fmean(item.step_s for item in self.moments.values())


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """Medians of a host's measurements over the same stretch; None for unmeasured values."""

    refused_percent: float | None = None  # processor time that the host's limit refused, in percent of one processor
    rtt_ms: float | None = None  # round trip to the nearest other host
    resent_percent: float | None = None  # share of the host's sent segments that are retransmissions


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """A line of the table: usual seconds of a rank's step."""

    rank: int
    host: str
    step_s: float
    data_wait_s: float
    forward_s: float
    backward_s: float
    communication_s: float
    optimizer_s: float
    other_s: float


@dataclass(frozen=True, kw_only=True)
class StragglerVerdict:
    """Verdict on a job: the slow host, its slow ranks and the reason, or no slow host.

    Attributes:
        host: the slow host; empty if no single host is slow, as with a slow link between two hosts.
        ranks: slow ranks of that host; empty if the reason is the network.
        text: the verdict in a sentence.
        evidence: sentences.
        confidence: `high` or `medium`; empty if neither a rank nor the network is slow.
        lost_s: seconds of each step that would be saved if the host were as fast as the others; 0 if the reason is the
            network.
    """

    kind: StragglerKind
    text: str
    host: str = ""
    ranks: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    confidence: str = ""
    lost_s: float = 0.0

    @property
    def is_found(self) -> bool:
        """Whether a slow rank or a slow network was found."""
        return self.kind not in (StragglerKind.NOBODY, StragglerKind.UNKNOWN)


def rows_of(ranks: Sequence[RankSteps]) -> list[RankRow]:
    """Return a row for each rank that was measured."""
    rows = []
    for item in sorted(ranks, key=lambda item: item.rank):
        if item.moments:
            usual = item.usual()
            parts = {name: round(getattr(usual, name), 6) for name in ("step_s", *PARTS, "other_s")}
            rows.append(RankRow(rank=item.rank, host=item.host, **parts))
    return rows


def judge(ranks: Sequence[RankSteps], hosts: Mapping[str, HostFacts], *, has_gpus: bool = False) -> StragglerVerdict:
    """Return the verdict: the slow host, its slow ranks and the reason, or no slow host.

    Args:
        ranks: all ranks of a job; ranks with fewer than LEAST_MOMENTS moments are left out.
        hosts: measurements of the ranks' hosts.
        has_gpus: whether ranks compute on GPUs; then a rank's own times do not show its waits for others.
    """
    ranks = [item for item in ranks if len(item.moments) >= LEAST_MOMENTS]
    if len(ranks) < 2:
        return StragglerVerdict(
            kind=StragglerKind.UNKNOWN,
            text="too few steps are known: it takes two ranks that train with torch, and about a quarter of a minute",
        )
    usual = {item.rank: item.usual() for item in ranks}
    if len(usual) < len(ranks):
        return StragglerVerdict(
            kind=StragglerKind.UNKNOWN,
            text="hosts have ranks of the same numbers: they train beside each other, and none waits for another",
        )
    slow = max(ranks, key=lambda item: usual[item.rank].own_s)
    others = [item for item in ranks if item.host != slow.host] or [item for item in ranks if item is not slow]
    if slow.mean_step_s() > MOST_STEPS_APART * statistics.median(item.mean_step_s() for item in others):
        return StragglerVerdict(
            kind=StragglerKind.NOBODY,
            text="no rank is slow: steps of one rank are longer than those of others, which do not wait for it",
        )
    found = _slow_rank(slow, others, usual, hosts, together=[item for item in ranks if item.host == slow.host])
    if found is None:
        found = _slow_network(list(usual.values()), hosts, {item.host for item in ranks})
    if found is not None:
        return found
    spread = _share_of_step(slow, others, usual)
    return StragglerVerdict(
        kind=StragglerKind.NOBODY,
        text=f"no rank is slow: the slowest rank works {max(0.0, spread):.0%} of a step longer than the others"
        + (_BEHIND if has_gpus else ""),
    )


def _slow_rank(
    slow: RankSteps,
    others: Sequence[RankSteps],
    usual: Mapping[int, StepTimes],
    hosts: Mapping[str, HostFacts],
    *,
    together: Sequence[RankSteps],
) -> StragglerVerdict | None:
    share, votes = _share_of_step(slow, others, usual), _votes(slow, others)
    if share < LEAST_SHARE or votes < LEAST_VOTES:
        return None
    its, theirs = usual[slow.rank], [usual[item.rank] for item in others]
    base_s = _median(theirs, "own_s")
    lost_s = its.own_s - base_s
    growth = {name: getattr(its, name) - _median(theirs, name) for name in _WORDS}
    most = max(growth, key=lambda name: growth[name])
    refused = _more_refused(slow.host, {item.host for item in others} - {slow.host}, hosts)
    is_input = refused is None and growth["data_wait_s"] >= lost_s / 2
    kind = StragglerKind.INPUT if is_input else StragglerKind.COMPUTE
    slow_ranks = tuple(sorted(item.rank for item in together if usual[item.rank].own_s - base_s >= lost_s / 2))
    works, others_work = _spans(its.own_s, base_s)
    waits, others_wait = _spans(its.communication_s, _median(theirs, "communication_s"))
    takes, others_take = _spans(getattr(its, most), _median(theirs, most))
    evidence = [
        f"rank {slow.rank} works {works} a step, the others {others_work}",
        f"in collectives it waits {waits} a step, the others {others_wait}",
        f"most of the difference is {_WORDS[most]}: {takes} against {others_take}",
        *([refused] if refused else ()),
        f"it was so at {votes:.0%} of {len(slow.moments)} moments",
    ]
    (lost,) = _spans(lost_s)
    return StragglerVerdict(
        kind=kind,
        host=slow.host,
        ranks=slow_ranks,
        text=f"{slow.host} ({_named(slow_ranks)}) is slow: {kind.value}; every step takes {lost} longer for it,"
        f" {lost_s / max(its.step_s, 1e-9):.0%} of its time",
        evidence=tuple(evidence),
        confidence="high" if votes >= CLEAR_VOTES and share >= CLEAR_SHARE else "medium",
        lost_s=round(lost_s, 6),
    )


def _slow_network(
    usual: Sequence[StepTimes], hosts: Mapping[str, HostFacts], names: Collection[str]
) -> StragglerVerdict | None:
    step_s, waits_s = _median(usual, "step_s"), _median(usual, "communication_s")
    if len(names) < 2 or waits_s < LEAST_COMMUNICATION * step_s:
        return None
    works, waits = _spans(_median(usual, "own_s"), waits_s)
    shared = f"all ranks work about {works} a step and communicate for {waits} of it"
    rtts = {name: facts.rtt_ms for name, facts in hosts.items() if name in names and facts.rtt_ms is not None}
    if len(names) == 2:
        if rtts and min(rtts.values()) >= PAIR_RTT_MS:
            return _network("", f"a round trip between the two takes {min(rtts.values()):.1f} ms", shared, "medium")
    elif len(rtts) > 2:
        worst = max(rtts, key=lambda name: rtts[name])
        rest = statistics.median(rtt for name, rtt in rtts.items() if name != worst)
        if rtts[worst] >= max(RTT_FACTOR * rest, rest + RTT_EXCESS_MS):
            words = f"a round trip from {worst} takes {rtts[worst]:.1f} ms at least, from the others {rest:.1f} ms"
            return _network(worst, words, shared, "high" if rtts[worst] >= CLEAR_RTT_FACTOR * rest else "medium")
    lost = {name: hosts.get(name, HostFacts()).resent_percent or 0.0 for name in names}
    worst = max(lost, key=lambda name: lost[name])
    rest = statistics.median(lost[name] for name in names if name != worst)
    if lost[worst] >= max(RESENT_PERCENT, RESENT_FACTOR * rest):
        words = f"{worst} sends {lost[worst]:.1f} % of its segments again, the others {rest:.1f} %"
        return _network(worst, words, shared, "medium")
    return None


def _network(host: str, words: str, shared: str, confidence: str) -> StragglerVerdict:
    where = f"{host} is slow" if host else "the way between the two hosts is slow"
    return StragglerVerdict(
        kind=StragglerKind.NETWORK,
        host=host,
        text=f"{where}: network; {words}",
        evidence=(shared, words),
        confidence=confidence,
    )


def _share_of_step(slow: RankSteps, others: Sequence[RankSteps], usual: Mapping[int, StepTimes]) -> float:
    theirs = [usual[item.rank] for item in others]
    step_s = max(_median(theirs, "step_s"), 1e-9)
    return (usual[slow.rank].own_s - _median(theirs, "own_s")) / step_s


def _votes(slow: RankSteps, others: Sequence[RankSteps]) -> float:
    """Return the share of moments at which `slow` was clearly slower than the others; 0 if too few are known."""
    num_votes = num_moments = 0
    for at_ms, its in slow.moments.items():
        theirs = [item.moments[at_ms] for item in others if at_ms in item.moments]
        if theirs:
            num_moments += 1
            num_votes += its.own_s - _median(theirs, "own_s") >= LEAST_SHARE / 2 * _median(theirs, "step_s")
    return num_votes / num_moments if num_moments >= LEAST_MOMENTS else 0.0


def _more_refused(host: str, others: Collection[str], hosts: Mapping[str, HostFacts]) -> str | None:
    """Return a sentence if a host is refused far more processor time than others, else None."""
    its = hosts.get(host, HostFacts()).refused_percent
    if its is None:
        return None
    rest = [facts.refused_percent or 0.0 for name, facts in hosts.items() if name in others]
    usual = statistics.median(rest) if rest else 0.0
    if its < usual + REFUSED_PERCENT:
        return None
    return f"its limit refuses {host} {its:.0f} % of a processor, the others {usual:.0f} %"


def _spans(*seconds: float) -> tuple[str, ...]:
    """Return spans of time as texts, all in the unit of the longest span."""
    if max(seconds) < SHORT_S:
        return tuple(f"{one * _MS_PER_S:.1f} ms" for one in seconds)
    return tuple(f"{one:.3f} s" for one in seconds)


def _median(times: Sequence[StepTimes], name: str) -> float:
    return float(statistics.median(getattr(item, name) for item in times))


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
