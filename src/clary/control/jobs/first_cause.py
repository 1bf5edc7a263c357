"""Which of all that went wrong came first. Pure.

Where: `transitions` asks after every report of a failing job, until the job is terminal: reports of hosts arrive in any
order, and the host that failed first may be the last to say so. `clary describe --why` shows the same moments.

When one rank of a gang dies, the others follow: connections break, launchers report that a child has failed, the agent
ends what is left. So moments have a weight, and the earliest of the lightest weight is the cause:

    own      a process's own exception, death by signal, exit code; a full disk, a memory limit, a host that is gone
    effect   an exception that says that a peer or a connection is gone
    wrapper  a launcher that says that its child has failed

A process that the agent has ended counts only with what it said before the first process ended by itself. What the
program wrote into its failure file takes the place of the words, wherever the cause was found.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum

from clary.contract.agent_protocol import Clue, Failure, HostFacts, HostPhase, ProcessExit
from clary.contract.errors import Fault
from clary.contract.failure_reasons import FULL_DISK, OUT_OF_MEMORY
from clary.control.jobs.training_job import HostRecord, JobFailure
from clary.control.jobs.verdicts import judge

_SIGNAL_BASE = 128
_WRAPPER = re.compile(r"\b(?:ChildFailedError|CalledProcessError|ExecuteUserScriptError|MPI_ABORT|mpirun detected)")
_EFFECT = re.compile(
    r"Connection(?:Reset|Refused|Aborted)Error|BrokenPipeError|Dist(?:Backend|Network|Store)Error"
    r"|[Cc]onnection (?:closed|reset|refused|was closed)|[Bb]roken pipe|connectFullMesh|Socket [Tt]imeout"
    r"|NCCL|gloo|[Tt]imed out (?:after|waiting)|recvValue|[Ww]ait timeout|IncompleteReadError|ProcessGroup"
)


class Weight(IntEnum):
    """How near a moment is to a cause."""

    OWN = 0
    EFFECT = 1
    WRAPPER = 2


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One thing that went wrong on one host."""

    at: datetime
    host: str
    rank: int | None
    weight: Weight
    fault: Fault
    words: str
    exit_code: int | None = None
    may_retry: bool = False


def find_first_cause(hosts: Mapping[str, HostRecord]) -> JobFailure | None:
    """Return the first cause of a failed job; None while no host has anything to say of a failure."""
    found = moments(hosts)
    if not found:
        return None
    first = min(found, key=lambda moment: (moment.weight, moment.at))
    failure = JobFailure(
        fault=first.fault.value, message=first.words, host=first.host, rank=first.rank, exit_code=first.exit_code
    )
    judgement = judge(first.fault, first.words, may_retry=first.may_retry)
    own_words = _failure_file(hosts, first) if first.fault is Fault.ALGORITHM else None
    if own_words is not None:
        failure = replace(failure, message=own_words, is_own_words=True)
    return replace(failure, verdict=judgement.verdict.value, is_retryable=judgement.is_retryable)


def moments(hosts: Mapping[str, HostRecord]) -> list[Moment]:
    """Return all that went wrong by itself, in the order of its time."""
    ends = [
        item.ended_at
        for record in hosts.values()
        for item in record.facts.exits
        if item.exit_code != 0 and not item.killed_by_agent
    ]
    until = min(ends, default=None)
    found = [moment for name, record in hosts.items() for moment in _of_host(name, record, until)]
    return sorted(found, key=lambda moment: moment.at)


def _of_host(name: str, record: HostRecord, until: datetime | None) -> Iterator[Moment]:
    facts = record.facts
    clues = {clue.rank: clue for clue in sorted(facts.clues, key=lambda clue: clue.at, reverse=True)}
    for item in facts.exits:
        if item.exit_code == 0:
            continue
        clue = clues.pop(item.rank, None)
        if item.killed_by_agent and (clue is None or until is None or clue.at > until):
            continue
        yield _of_exit(name, item, clue, facts.failure)
    if any(not item.killed_by_agent and item.exit_code != 0 for item in facts.exits):
        # Ranks that a launcher of the program's own has started: the agent knows their words, not their exits.
        yield from (_of_clue(name, clue) for rank, clue in clues.items() if rank is not None)
    if facts.failure is not None and _stands_alone(facts):
        yield Moment(
            at=facts.failure.at or facts.phase_started_at,
            host=name,
            rank=None,
            weight=Weight.OWN,
            fault=Fault(facts.failure.fault),
            words=facts.failure.message,
            exit_code=facts.failure.exit_code,
            may_retry=facts.failure.retryable,
        )
    if facts.phase is HostPhase.LOST and record.lost_why:
        at = facts.phase_started_at
        fault = Fault.INFRASTRUCTURE
        yield Moment(at=at, host=name, rank=None, weight=Weight.OWN, fault=fault, words=record.lost_why, may_retry=True)


def _stands_alone(facts: HostFacts) -> bool:
    """Whether a host's failure says something else than how its processes ended."""
    assert facts.failure is not None
    has_failed_exit = any(item.exit_code != 0 and not item.killed_by_agent for item in facts.exits)
    return not (has_failed_exit and facts.failure.fault == Fault.ALGORITHM.value)


def _of_exit(name: str, item: ProcessExit, clue: Clue | None, failure: Failure | None) -> Moment:
    """Tell of a process that ended with an error, with its own words or with what the agent knows for certain."""
    who = "the program" if item.rank is None else f"rank {item.rank}"
    how = f"{who} ended with exit code {item.exit_code}" if item.exit_code is not None else None
    words = how or f"{who} was ended by signal {item.signal}{_signal_name(item.signal)}"
    if item.killed_by_agent:
        words = who
    weight = Weight.OWN
    if failure is not None and failure.message.startswith((OUT_OF_MEMORY, FULL_DISK)) and not item.killed_by_agent:
        words = failure.message
    elif clue is not None and clue.text != f"SystemExit: exit code {item.exit_code}":
        words = f"{who if how else words}: {clue.text}"  # the exit code stands at the end of every reason
        weight = _weight(clue.text)
    elif failure is not None and failure.message.startswith(words):
        words = failure.message  # with the last line that the process has printed
        weight = _weight(words)
    code = item.exit_code if item.exit_code is not None else _SIGNAL_BASE + (item.signal or 0)
    return Moment(
        at=min(clue.at, item.ended_at) if clue is not None else item.ended_at,
        host=name,
        rank=item.rank,
        weight=weight,
        fault=Fault.ALGORITHM,
        words=words,
        exit_code=None if item.killed_by_agent else code,
    )


def _of_clue(name: str, clue: Clue) -> Moment:
    words = f"rank {clue.rank}: {clue.text}"
    weight = _weight(clue.text)
    return Moment(at=clue.at, host=name, rank=clue.rank, weight=weight, fault=Fault.ALGORITHM, words=words, exit_code=1)


def _weight(words: str) -> Weight:
    if _WRAPPER.search(words):
        return Weight.WRAPPER
    return Weight.EFFECT if _EFFECT.search(words) else Weight.OWN


def _failure_file(hosts: Mapping[str, HostRecord], first: Moment) -> str | None:
    """Return the failure file of the host where the cause was found; else of the first host that has one."""
    own = hosts[first.host].facts.failure_file
    return own or next((record.facts.failure_file for record in hosts.values() if record.facts.failure_file), None)


def _signal_name(signum: int | None) -> str:
    try:
        return f" ({signal.Signals(signum or 0).name})"
    except ValueError:
        return ""
