"""Planned faults of a rehearsal and their times, parsed from the command line or drawn from a seed. Pure.

Where: `clary rehearse` prints the plan before the jobs start and requests each fault from the service, which carries it
out.

    step:120     when the log shows step 120, or a later one
    @30s         30 seconds after training has begun; the @ may be left out
    @30s+10s     likewise; the fault ends after 10 seconds

    algo-1,algo-2@...    each of these hosts
    algo-1:algo-2@...    the link between these two
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from clary.base.errors import ContractError, Fault

# shares of the twin's steps between which drawn faults strike, so that they can lose work and the job can still recover
FIRST_SHARE, LAST_SHARE = 0.2, 0.9
DRAWN_LENGTH_S = (2.0, 8.0)
DRAWN_RATES_MBIT_S = (1.0, 5.0, 20.0)

_MOMENT = r"(?:step:(?P<step>[0-9]{1,12})|@?(?P<seconds>[0-9]{1,6}(?:\.[0-9]+)?)s)"
_LENGTH = r"(?:\+(?P<length>[0-9]{1,6}(?:\.[0-9]+)?)s)?"
_HOST = r"algo-[1-9][0-9]{0,3}"


class FaultKind(StrEnum):
    """The kind of a fault."""

    RECLAIM = "reclaim"  # spot capacity is reclaimed: SIGTERM, grace, last flush
    KILL = "kill"  # all processes of a host are killed at once
    KILL_RANK = "kill-rank"  # one rank's process is killed
    PARTITION = "partition"  # hosts are cut off from their job's network
    SLOW = "slow"  # the rate of a host's link is limited
    DISK_FULL = "disk-full"  # the private disk of a host is filled


NEVER_DRAWN = (FaultKind.KILL_RANK, FaultKind.DISK_FULL)  # their outcome depends on the launcher or the script


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Time of a fault; exactly one of step, seconds and share is set."""

    step: float | None = None  # as printed in the log
    epoch: float | None = None  # epoch of that step, if the log counts steps anew in each epoch
    seconds: float | None = None  # seconds after training began
    share: float | None = None  # share of the twin's steps; for drawn faults

    def __str__(self) -> str:
        """Return `at step 120`, `after 30 s`, `at 37 % of the twin's steps`."""
        if self.step is not None:
            return f"at {'' if self.epoch is None else f'epoch {self.epoch:g}, '}step {self.step:g}"
        if self.seconds is not None:
            return f"after {self.seconds:g} s"
        return f"at {100 * (self.share or 0):.0f} % of the twin's steps"

    def has_come(self, *, step: float, epoch: float | None) -> bool:
        """Whether the log has reached the step."""
        if self.step is None:
            return False
        if self.epoch is not None and epoch is not None:
            return (epoch, step) >= (self.epoch, self.step)
        return step >= self.step


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """One fault."""

    kind: FaultKind
    moment: Moment
    hosts: tuple[str, ...] = ()  # empty for a fault of a rank, and for a reclaim that may strike any host
    rank: int | None = None
    length_s: float | None = None  # None: until the hosts are released
    rate_mbit_s: float | None = None
    is_between: bool = False  # only the link of the two hosts is cut; both reach all other hosts

    def __str__(self) -> str:
        """Return `kill algo-2 at step 120`."""
        target = (
            f"rank {self.rank}" if self.rank is not None else (" from " if self.is_between else ", ").join(self.hosts)
        )
        verbs = {FaultKind.KILL_RANK: "kill", FaultKind.DISK_FULL: "fill the disk of"}
        words = [verbs.get(self.kind, self.kind.value), target]
        if self.rate_mbit_s is not None:
            words.append(f"to {self.rate_mbit_s:g} Mbit/s")
        words.append(str(self.moment))
        if self.length_s is not None:
            words.append(f"for {self.length_s:g} s")
        return " ".join(word for word in words if word)


_FORMS = {
    FaultKind.RECLAIM: (rf"(?:(?P<hosts>{_HOST})@)?{_MOMENT}", "step:120, @30s or algo-2@step:120"),
    FaultKind.KILL: (rf"(?P<hosts>{_HOST})@{_MOMENT}", "algo-2@180s or algo-2@step:120"),
    FaultKind.KILL_RANK: (rf"(?P<rank>[0-9]{{1,6}})@{_MOMENT}", "3@180s or 3@step:120"),
    FaultKind.PARTITION: (
        rf"(?P<hosts>{_HOST}(?:(?:,{_HOST})*|:{_HOST}))@{_MOMENT}{_LENGTH}",
        "algo-1,algo-2@200s+10s, or algo-1:algo-2@200s+10s between two alone",
    ),
    FaultKind.SLOW: (
        rf"(?P<hosts>{_HOST})@{_MOMENT}{_LENGTH}:(?P<rate>[0-9]{{1,6}}(?:\.[0-9]+)?)mbit",
        "algo-2@60s+30s:5mbit",
    ),
    FaultKind.DISK_FULL: (rf"(?P<hosts>{_HOST})@{_MOMENT}{_LENGTH}", "algo-2@step:120 or algo-2@180s+30s"),
}


def parse_fault(kind: FaultKind, text: str) -> PlannedFault:
    """Parse the value of `--kill` or another option for faults.

    Raises: ContractError naming the valid forms.
    """
    form, example = _FORMS[kind]
    found = re.fullmatch(form, text.strip())
    if found is None:
        raise ContractError(f"--{kind.value}: expected {example}, got {text[:80]!r}", fault=Fault.USER)
    parts = found.groupdict()
    step, seconds, rank = parts["step"], parts["seconds"], parts.get("rank")
    length, rate = parts.get("length"), parts.get("rate")
    hosts = parts.get("hosts") or ""
    moment = Moment(step=int(step)) if step is not None else Moment(seconds=float(seconds))
    return PlannedFault(
        kind=kind,
        moment=moment,
        hosts=tuple(re.split("[,:]", hosts)) if hosts else (),
        is_between=":" in hosts,
        rank=None if rank is None else int(rank),
        length_s=None if length is None else float(length),
        rate_mbit_s=None if rate is None else float(rate),
    )


def check_hosts(faults: Sequence[PlannedFault], host_names: Sequence[str]) -> None:
    """Refuse faults of unknown hosts, links from a host to itself, and network faults in a job of one host."""
    for fault in faults:
        unknown = [host for host in fault.hosts if host not in host_names]
        if unknown:
            raise ContractError(
                f"{fault}: the job has no host {', '.join(unknown)}; it has {', '.join(host_names)}", fault=Fault.USER
            )
        if fault.kind in (FaultKind.PARTITION, FaultKind.SLOW) and len(host_names) < 2:
            raise ContractError(f"{fault}: a job of one host has no network between hosts", fault=Fault.USER)
        if fault.is_between and fault.hosts[0] == fault.hosts[1]:
            raise ContractError(f"{fault}: expected two hosts, algo-1:algo-2", fault=Fault.USER)


def without_cuts(fault: PlannedFault, others: Sequence[PlannedFault], *, num_hosts: int) -> PlannedFault | None:
    """Return a fault that ends only the cuts that no other active fault needs, or None if no cut can end.

    Args:
        fault: the fault that is to end.
        others: faults that have begun and have not ended.
        num_hosts: number of hosts of the job. In a job of two hosts, a cut between them counts as a cut of the second
            host.
    """
    if fault.kind is not FaultKind.PARTITION:
        return fault
    wanted = {cut for other in others if other.kind is FaultKind.PARTITION for cut in _cuts(other, num_hosts)}
    left = [cut for cut in _cuts(fault, num_hosts) if cut not in wanted]
    if fault.is_between:
        return fault if left else None
    return replace(fault, hosts=tuple(host for (host,) in left)) if left else None


def _cuts(fault: PlannedFault, num_hosts: int) -> list[tuple[str, ...]]:
    ordered = sorted(fault.hosts, key=lambda host: int(host.rpartition("-")[2]))
    if not fault.is_between:
        return [(host,) for host in ordered]
    return [tuple(ordered[1:])] if num_hosts == 2 else [tuple(ordered)]


def draw_faults(
    num_faults: int, *, seed: int, host_names: Sequence[str], kinds: Sequence[FaultKind]
) -> tuple[PlannedFault, ...]:
    """Draw faults; the same arguments give the same faults, in the order of their moments.

    Args:
        num_faults: number of faults to draw.
        seed: seed of the draws.
        host_names: hosts that faults may strike.
        kinds: available kinds of faults; kinds in `NEVER_DRAWN` are not drawn.
    Raises: ContractError (fault USER).
    """
    # A text as seed gives the same draws on every machine; the draws also depend on the hosts and the kinds.
    chance = random.Random(f"rehearsal:{seed}:{','.join(host_names)}")
    possible = [kind for kind in FaultKind if kind in kinds and kind not in NEVER_DRAWN]
    if len(host_names) < 2:
        possible = [kind for kind in possible if kind not in (FaultKind.PARTITION, FaultKind.SLOW)]
    if not possible:
        raise ContractError("--random: no kind of fault is available here", fault=Fault.USER)
    shares = sorted(round(chance.uniform(FIRST_SHARE, LAST_SHARE), 3) for _ in range(num_faults))
    drawn = []
    for share in shares:
        kind, host = chance.choice(possible), chance.choice(list(host_names))
        fault = PlannedFault(kind=kind, moment=Moment(share=share), hosts=(host,))
        if kind is FaultKind.SLOW:
            length_s = round(chance.uniform(*DRAWN_LENGTH_S), 1)
            fault = replace(fault, length_s=length_s, rate_mbit_s=chance.choice(DRAWN_RATES_MBIT_S))
        drawn.append(fault)
    return tuple(drawn)


def settle(fault: PlannedFault, twin_steps: Sequence[tuple[float | None, float]]) -> PlannedFault:
    """Return a drawn fault with the step at which it strikes, computed from the twin's steps.

    Args:
        twin_steps: (epoch, step) of each step, in order; the epoch is None if steps do not begin anew in each epoch.
    """
    if fault.moment.share is None or not twin_steps:
        return fault
    epoch, step = twin_steps[round(fault.moment.share * (len(twin_steps) - 1))]
    return replace(fault, moment=Moment(step=step, epoch=epoch))
