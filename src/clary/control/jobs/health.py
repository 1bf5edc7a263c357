"""Diagnosis of sick hosts and links of a job from its hosts' findings. Pure.

Where: `transitions` calls `failure_of`, which decides before the program starts; the page `health` and
`clary doctor JOB` show the same result. Both ends of a link check it: a host whose links are mostly bad is sick itself;
any other bad link is itself sick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clary.base.errors import Fault
from clary.contract.agent_protocol import HostPhase
from clary.contract.health import WARN_CLOCK_S, Check, FindingState, HealthAction, HealthFinding, seconds_in_words
from clary.control.jobs.training_job import JobFailure, TrainingJob
from clary.control.jobs.verdicts import Verdict

LOPSIDED = 8.0  # ratio of a link's rates in both directions; short bursts differ by a factor of two or three
LOPSIDED_BELOW_MBIT_S = 500.0  # upper limit of the slower rate; above it a burst measures the load of the machine
_BEFORE_START = (HostPhase.LAUNCHING, HostPhase.PREPARING, HostPhase.PREPARED)

Findings = Mapping[str, Sequence[HealthFinding]]  # host -> its findings
_Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Sickness:
    """A host or a link that should not carry a job."""

    host: str
    peer: str | None  # the other end of a sick link; None for a host
    reason: str


def job_of_good_links(job: TrainingJob) -> str:
    """Return the job whose check found the links of an ended job's hosts healthy; empty without such a check.

    Links are not checked twice: a job on the hosts of a warm pool starts at once.
    """
    findings = [finding for record in job.hosts.values() for finding in record.facts.health]
    has_all = job.hosts and all(record.facts.health for record in job.hosts.values())
    if not has_all or any(finding.state in (FindingState.WARN, FindingState.BAD) for finding in findings):
        return ""
    if all(any(_is_sum(finding) for finding in record.facts.health) for record in job.hosts.values()):
        return job.name
    return str((job.plan or {}).get("network_checked_for", ""))


def diagnose(findings: Findings) -> tuple[Sickness, ...]:
    """Return the sick hosts, then the sick links between other hosts; empty if no finding is bad."""
    sick = {host: reason for host, found in findings.items() if (reason := _own_trouble(found))}
    bad = {pair: found for pair, found in _bad_links(findings).items() if not sick.keys() & set(pair)}
    # The host with the most bad links comes first: hosts whose bad links all lead to it are then healthy.
    while (worst := _worst(bad, num_hosts=len(findings) - len(sick))) is not None:
        pairs = [pair for pair in bad if worst in pair]
        sick[worst] = f"{len(pairs)} of its {len(findings) - 1} links are bad; {_of_both_ends(bad[pairs[0]])}"
        bad = {pair: found for pair, found in bad.items() if worst not in pair}
    hosts = [Sickness(host=host, peer=None, reason=reason) for host, reason in sick.items()]
    return (*hosts, *(Sickness(host=pair[0], peer=pair[1], reason=_of_both_ends(bad[pair])) for pair in bad))


def failure_of(job: TrainingJob) -> JobFailure | None:
    """Return why an attempt should end before its program starts; None if not, or if sickness is only a warning."""
    if not _is_replaced_when_sick(job):
        return None
    records = job.hosts.values()
    if not all(record.facts.phase in _BEFORE_START and record.facts.health for record in records):
        return None
    sick = diagnose(findings_of(job))
    if not sick:
        return None
    first = sick[0]
    is_link = first.peer is not None
    what = f"the link to {first.peer} is sick" if is_link else "the host is sick"
    return JobFailure(
        fault=Fault.INFRASTRUCTURE.value,
        message=f"{what}: {first.reason}",
        host=first.host,
        verdict=(Verdict.NETWORK if is_link else Verdict.HOST).value,
        is_retryable=True,
    )


def why_replaced(job: TrainingJob) -> str:
    """Return why no other attempt should use an attempt's hosts; empty if one may, or if sickness is only a warning."""
    sick = diagnose(findings_of(job)) if _is_replaced_when_sick(job) else ()
    return f"{sick[0].host} was found sick: {sick[0].reason}" if sick else ""


def findings_of(job: TrainingJob) -> dict[str, tuple[HealthFinding, ...]]:
    """Return each host's findings of the current attempt, with warnings that only a comparison of hosts reveals."""
    return with_skew(with_lopsided({name: record.facts.health for name, record in job.hosts.items()}))


def clock_words(job: TrainingJob) -> list[str]:
    """Return a sentence on the clock of each host of the present attempt whose clock was checked."""
    found = [item for items in findings_of(job).values() for item in items if item.check is Check.CLOCK]
    return [f"{item.host}: {item.words}" for item in found if item.clock_offset_s is not None]


def with_lopsided(findings: Findings) -> dict[str, tuple[HealthFinding, ...]]:
    """Return the findings, with new findings on links that are much faster in one direction."""
    links = [finding for found in findings.values() for finding in found if finding.peer is not None]
    rates = {(link.host, link.peer): link.rate_mbit_s for link in links if link.rate_mbit_s is not None}
    told = {(link.host, link.peer) for link in links if link.check is Check.RATE}
    result = {host: tuple(found) for host, found in findings.items()}
    for (host, peer), rate in rates.items():
        other_way = rates.get((peer or "", host), 0.0)
        if (host, peer) in told or rate >= LOPSIDED_BELOW_MBIT_S or rate * LOPSIDED >= other_way:
            continue
        finding = HealthFinding(
            check=Check.RATE,
            state=FindingState.WARN,
            host=host,
            peer=peer,
            words=f"{rate:g} Mbit/s, but {other_way:g} Mbit/s from {peer} to {host}",
            cause="a limit or a route that only this direction has",
        )
        result[host] = (*(item for item in result[host] if not _is_praise(item, peer)), finding)
    return result


def with_skew(findings: Findings) -> dict[str, tuple[HealthFinding, ...]]:
    """Return the findings, with a warning if clocks of two hosts differ though each agrees with the service's clock.

    The warning names the host that is further off the service's clock.
    """
    clocks = sorted(
        (item.clock_offset_s, item.host)
        for found in findings.values()
        for item in found
        if item.check is Check.CLOCK and item.clock_offset_s is not None
    )
    result = {host: tuple(found) for host, found in findings.items()}
    if not clocks or clocks[-1][0] - clocks[0][0] < WARN_CLOCK_S:
        return result
    (least_s, behind), (most_s, ahead) = clocks[0], clocks[-1]
    host, peer, how = (ahead, behind, "ahead of") if most_s >= -least_s else (behind, ahead, "behind")
    skew = f"{seconds_in_words(most_s - least_s)} {how} {peer}'s, expected less than {WARN_CLOCK_S:g} s"
    result[host] = tuple(
        replace(
            item,
            state=FindingState.WARN,
            words=f"{item.words}, {skew}",
            cause="the machine's clock is not kept: have NTP set it",
        )
        if item.check is Check.CLOCK and item.state is FindingState.OK
        else item
        for item in result[host]
    )
    return result


def _is_replaced_when_sick(job: TrainingJob) -> bool:
    return job.plan is not None and job.plan.get("health_action") == HealthAction.REPLACE.value


def _is_sum(finding: HealthFinding) -> bool:
    """Whether a finding states that a host has finished the checks of its links without a fault."""
    return finding.check is Check.COLLECTIVE and finding.state is FindingState.OK


def _is_praise(finding: HealthFinding, peer: str | None) -> bool:
    return finding.peer == peer and finding.check is Check.LINK and finding.state is FindingState.OK


def _own_trouble(found: Sequence[HealthFinding]) -> str:
    """Return sentences on the first two bad findings about a host itself, not its links; or an empty text.

    Findings about its routes count only if there are no other bad findings about it.
    """
    bad = [item for item in found if item.state is FindingState.BAD]
    own = [item for item in bad if item.peer is None] or [item for item in bad if item.check is Check.ROUTE]
    return "; ".join(_words(item) for item in own[:2])


def _bad_links(findings: Findings) -> dict[_Pair, list[HealthFinding]]:
    """Return the bad findings about each link, from either end."""
    bad: dict[_Pair, list[HealthFinding]] = {}
    for finding in (item for found in findings.values() for item in found):
        if finding.peer is not None and finding.state is FindingState.BAD and finding.check is not Check.ROUTE:
            first, second = sorted((finding.host, finding.peer))
            bad.setdefault((first, second), []).append(finding)
    return bad


def _worst(bad: Mapping[_Pair, Sequence[HealthFinding]], *, num_hosts: int) -> str | None:
    """Return the host with the most bad links if more than half of its links are bad, or None if no host has so many.

    For two hosts the result is None: the faulty end of their only link is unknown.
    """
    hosts = sorted({host for pair in bad for host in pair})
    counts = {host: sum(host in pair for pair in bad) for host in hosts}
    worst = max(hosts, key=lambda host: counts[host], default=None)
    if worst is None or num_hosts < 3 or 2 * counts[worst] <= num_hosts - 1:
        return None
    return worst


def _of_both_ends(found: Sequence[HealthFinding]) -> str:
    """Return a sentence on the fault of a link, with the second end's finding if it differs."""
    first = found[0]
    others = [item for item in found if item.host != first.host and item.cause != first.cause]
    return "; ".join(_words(item) for item in (first, *others[:1]))


def _words(finding: HealthFinding) -> str:
    where = f"{finding.host} to {finding.peer}, " if finding.peer is not None else ""
    cause = f" ({finding.cause})" if finding.cause else ""
    return f"{where}{finding.check}: {finding.words}{cause}"
