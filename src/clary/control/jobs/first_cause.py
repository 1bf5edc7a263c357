"""Which of all that went wrong came first. Pure.

Where: `transitions` asks after every report of a failing job, until the job is terminal: reports of hosts arrive in any
order, and the host that failed first may be the last to say so. `clary describe --why` shows the same moments.

When one rank of a gang dies, the others follow: connections break, launchers report that a child has failed, the agent
ends what is left. So moments have a weight, and the earliest of the lightest weight is the cause:

    own      a process's own exception, death by signal, exit code; a full disk, a memory limit, a host that is gone
    effect   an exception that says that a peer or a connection is gone
    wrapper  a launcher that says that its child has failed, or ends with an error when one of its ranks has told why

`failure_words` weighs what processes say. Ranks of mpirun are known by their records, which lie on their own host, and
by what mpirun prints on its host; a rank that both tell of counts once, where it was first told.

A process that the agent has ended counts only with what it said before the first process ended by itself. What the
program wrote into its failure file takes the place of the words, wherever the cause was found.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from clary.contract.agent_protocol import Clue, Failure, HostFacts, HostPhase, ProcessExit
from clary.contract.errors import Fault
from clary.contract.failure_reasons import FULL_DISK, OUT_OF_MEMORY
from clary.contract.signal_names import signal_name
from clary.control.jobs.failure_words import Weight, weigh
from clary.control.jobs.training_job import HostRecord, JobFailure
from clary.control.jobs.verdicts import judge

_SIGNAL_BASE = 128
# What mpirun says on its own host of a rank on any host: the only word on a rank that a signal has ended.
_MPIRUN = re.compile(r"process rank \d+ with PID \d+ on node (\S+) exited on signal (\d{1,3})\b")


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
    first = first_of(moments(hosts))
    if first is None:
        return None
    failure = JobFailure(
        fault=first.fault.value, message=first.words, host=first.host, rank=first.rank, exit_code=first.exit_code
    )
    judgement = judge(first.fault, first.words, may_retry=first.may_retry)
    own_words = _failure_file(hosts, first) if first.fault is Fault.ALGORITHM else None
    if own_words is not None:
        failure = replace(failure, message=own_words, is_own_words=True)
    return replace(failure, verdict=judgement.verdict.value, is_retryable=judgement.is_retryable)


def first_of(found: Sequence[Moment]) -> Moment | None:
    """Return the moment that is the cause of the others: the earliest of the lightest weight; None of none."""
    return min(found, key=lambda moment: (moment.weight, moment.at), default=None)


def moments(hosts: Mapping[str, HostRecord]) -> list[Moment]:
    """Return all that went wrong by itself, in the order of its time."""
    ends = [
        item.ended_at
        for record in hosts.values()
        for item in record.facts.exits
        if item.exit_code != 0 and not item.is_consequence
    ]
    until = min(ends, default=None)
    found = [moment for name in hosts for moment in _of_host(name, hosts, until)]
    return _each_rank_once(sorted(found, key=lambda moment: moment.at))


def _each_rank_once(found: Sequence[Moment]) -> list[Moment]:
    """Leave out what a second host tells of a rank: mpirun prints on its own host what ranks of others have said."""
    hosts = {moment.rank: moment.host for moment in reversed(found) if moment.rank is not None}
    return [moment for moment in found if moment.rank is None or hosts[moment.rank] == moment.host]


def _of_host(name: str, hosts: Mapping[str, HostRecord], until: datetime | None) -> Iterator[Moment]:
    record = hosts[name]
    facts = record.facts
    clues = {clue.rank: clue for clue in sorted(facts.clues, key=lambda clue: clue.at, reverse=True)}
    of_exits = [(item, clues.pop(item.rank, None)) for item in facts.exits]
    # What is left is of ranks that a launcher of the program's own has started, here or on another host: the agent
    # knows their words, not their exits.
    clues.pop(None, None)
    for item, clue in of_exits:
        if item.exit_code == 0:  # whatever it said, it survived
            continue
        if item.is_consequence and (clue is None or until is None or clue.at > until):
            continue
        moment = _of_exit(name, item, clue, _failure_for(item, facts))
        is_launcher = item.rank is None and bool(clues) and not _is_certain(facts.failure)
        yield replace(moment, weight=Weight.WRAPPER) if is_launcher else moment
    if until is not None:
        code = _launcher_code([item for item in facts.exits if not item.is_consequence and item.exit_code != 0])
        yield from (_of_clue(name, clue, code, hosts) for clue in clues.values())
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
    """Whether a host's failure says something else than how its processes ended, and they did not survive it."""
    assert facts.failure is not None
    has_failed_exit = any(item.exit_code != 0 and not item.is_consequence for item in facts.exits)
    has_survived = bool(facts.exits) and all(item.exit_code == 0 for item in facts.exits)
    return not ((has_failed_exit or has_survived) and facts.failure.fault == Fault.ALGORITHM.value)


def _of_exit(name: str, item: ProcessExit, clue: Clue | None, failure: Failure | None) -> Moment:
    """Tell of a process that ended with an error, with its own words or with what the agent knows for certain."""
    who = "the program" if item.rank is None else f"rank {item.rank}"
    how = f"{who} ended with exit code {item.exit_code}" if item.exit_code is not None else None
    words = how or f"{who} was ended by {signal_name(item.signal)}"
    if item.is_consequence:
        words = who
    elif item.signal == signal.SIGKILL:
        clue = None  # nobody has a last word before it: whatever the process printed, it had survived
    weight = Weight.OWN
    if failure is not None and _is_certain(failure) and not item.is_consequence:
        words = failure.message
    elif clue is not None and clue.text != f"SystemExit: exit code {item.exit_code}":
        words = f"{who if how else words}: {clue.text}"  # the exit code stands at the end of every reason
        weight = weigh(clue.text)
    elif item.signal != signal.SIGKILL and failure is not None and failure.message.startswith(words):
        words = failure.message  # with the last line that the process has printed
        weight = weigh(words)
    return Moment(
        at=min(clue.at, item.ended_at) if clue is not None else item.ended_at,
        host=name,
        rank=item.rank,
        weight=weight,
        fault=Fault.ALGORITHM,
        words=words,
        exit_code=None if item.is_consequence else _shell_code(item),
    )


def _failure_for(item: ProcessExit, facts: HostFacts) -> Failure | None:
    """Return the host's failure as far as it can be this process's: a memory limit ends by SIGKILL, and not everybody.

    A launcher passes such an end on as an exit code, so where no process was killed, any may stand for it.
    """
    failure = facts.failure
    if failure is None or not failure.message.startswith(OUT_OF_MEMORY) or item.signal == signal.SIGKILL:
        return failure
    was_killed = any(other.signal == signal.SIGKILL and not other.is_consequence for other in facts.exits)
    return None if was_killed else failure


def _of_clue(name: str, clue: Clue, exit_code: int | None, hosts: Mapping[str, HostRecord]) -> Moment:
    """Tell of a rank that a launcher of the program's own has started, with what it said or its launcher did."""
    words, weight = f"rank {clue.rank}: {clue.text}", weigh(clue.text)
    by_signal = _MPIRUN.search(clue.text)
    if by_signal is not None:
        name, weight = (by_signal[1] if by_signal[1] in hosts else name), Weight.OWN
        words = f"rank {clue.rank} was ended by {signal_name(int(by_signal[2]))}"
        failure = hosts[name].facts.failure
        if failure is not None and _is_certain(failure):
            words = failure.message
    return Moment(
        at=clue.at, host=name, rank=clue.rank, weight=weight, fault=Fault.ALGORITHM, words=words, exit_code=exit_code
    )


def _is_certain(failure: Failure | None) -> bool:
    """Whether the agent knows for certain what ended processes of its host, whatever they said."""
    return failure is not None and failure.message.startswith((OUT_OF_MEMORY, FULL_DISK))


def _launcher_code(failed: Sequence[ProcessExit]) -> int | None:
    """Return the exit code of a host's one process without a rank, which is how its launcher passes a rank's on."""
    codes = [_shell_code(item) for item in failed if item.rank is None]
    return codes[0] if len(codes) == 1 else None


def _shell_code(item: ProcessExit) -> int:
    """Return a process's exit code as a shell gives it."""
    return item.exit_code if item.exit_code is not None else _SIGNAL_BASE + (item.signal or 0)


def _failure_file(hosts: Mapping[str, HostRecord], first: Moment) -> str | None:
    """Return the failure file of the host where the cause was found; else of the first host that has one."""
    own = hosts[first.host].facts.failure_file
    return own or next((record.facts.failure_file for record in hosts.values() if record.facts.failure_file), None)
