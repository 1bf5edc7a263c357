"""The first cause of a job's failure. Pure.

Where: `transitions` calls `find_first_cause` after every event of a job that has hosts and whose end was not ordered,
until the job is terminal: reports of hosts arrive in any order, and the host that failed first may report last.
`clary describe --why` shows the same failures.

When one rank of a gang dies, the others follow: connections break, launchers report that a child has failed, the agent
ends the remaining processes. So each failure (a `Moment`) has a weight, and the earliest failure of the lightest weight
is the cause:

    own      a process's own exception, death by signal, exit code; a full disk, a memory limit, a lost host
    effect   an exception that reports a lost peer or connection
    wrapper  a launcher that reports the failure of its child, or ends with an error after one of its ranks has reported
    the reason

Some ends are noticed late: a host is lost when it has been silent for a while, a killed rank is reaped only when its
memory has been freed, a GPU error is in the kernel's log before the agent reads it. A rank that catches its peer's
error and exits with `sys.exit(1)` then seems to have failed first. So when such an end is compared with failures of
ranks that may have reacted to it, it is dated to the last time at which it certainly had not happened. Repeatable
errors of the code, a memory limit, a full disk, and a death by a signal other than SIGABRT and SIGPIPE never count as
reactions.

`failure_words` weighs the texts of processes. A rank started by mpirun is known from its record on its own host, and
from mpirun's output on mpirun's host; a rank in both counts once, by the earlier report.

For a process that the agent has ended, only the output counts that it wrote before the first process failed by itself.
The content of the program's failure file, on any host, replaces the text of the cause if the program has failed.

A hardware error of a GPU is the cause of failures that its host reports soon after, unless some rank reports that the
code itself has failed: a program can also survive a hardware error.
"""

from __future__ import annotations

import re
import signal
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from clary.base.errors import Fault
from clary.base.signal_names import signal_name
from clary.contract.agent_protocol import Clue, Failure, GpuError, HostFacts, HostPhase, ProcessExit
from clary.contract.failure_reasons import FULL_DISK, OUT_OF_MEMORY
from clary.contract.gpu_errors import is_of_hardware, xid_in_words
from clary.control.jobs.failure_words import Weight, class_of, is_misuse, is_of_the_code, weigh
from clary.control.jobs.training_job import HostRecord, JobFailure
from clary.control.jobs.verdicts import Verdict, judge

_SIGNAL_BASE = 128
GPU_S = 900.0  # longest time from a GPU error to a program's report of it: NCCL waits for ten minutes
REAP_S = 1.0  # longest time from a killed rank's disconnection to the record of its end, on a busy machine
# How a program may end because of a peer: no signal, SIGABRT from a library, SIGPIPE from a lost connection.
_ANSWERING = (None, signal.SIGABRT, signal.SIGPIPE)
_OPEN_VERDICTS = (Verdict.USER, Verdict.NETWORK)  # other verdicts name failures that no peer can cause
_SAID_CODE = re.compile(r"SystemExit: exit code (\d{1,3})")
# Line that mpirun prints about a rank on any host: the only report of a rank that a signal has ended.
_MPIRUN = re.compile(r"process rank \d+ with PID \d+ on node (\S+) exited on signal (\d{1,3})\b")


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One failure on one host."""

    at: datetime
    host: str
    rank: int | None
    weight: Weight
    fault: Fault
    words: str
    exit_code: int | None = None
    may_retry: bool = False
    not_before: datetime | None = None  # for an end that is noticed late: a time when it had certainly not happened
    is_of_part: bool = False  # whether only the link or a GPU of the host has failed; its agent still reports
    is_mute: bool = False  # whether the words do not describe the failure: an exit code, an argument of `sys.exit`
    may_be_answer: bool = False  # whether it may be a program's reaction to the end of another rank or host


def find_first_cause(hosts: Mapping[str, HostRecord]) -> JobFailure | None:
    """Return the first cause of a failed job; None if no failure is known."""
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
    return replace(
        failure,
        verdict=judgement.verdict.value,
        is_retryable=judgement.is_retryable,
        may_be_answer=first.may_be_answer
        and judgement.verdict in _OPEN_VERDICTS
        and (first.is_mute or first.weight is not Weight.OWN),
    )


def first_of(found: Sequence[Moment]) -> Moment | None:
    """Return the moment that caused the other moments, or None if there are no moments.

    It is the earliest moment of the lightest weight, unless that moment may be a reaction to an end noticed late.
    """
    first = min(found, key=lambda moment: (moment.weight, moment.at), default=None)
    if first is None or not first.may_be_answer:
        return first
    return min((moment for moment in found if answers(first, moment)), key=lambda moment: moment.at, default=first)


def answers(moment: Moment, end: Moment) -> bool:
    """Whether a moment may be a program's reaction to an end that was noticed late."""
    if not moment.may_be_answer or end.not_before is None or moment.at < end.not_before:
        return False
    # An agent reports failures only before its host is lost, so they are no reactions to that loss. But they may be
    # reactions to the end of a rank, of the link or of a GPU of the host.
    return moment.host != end.host or end.rank is not None or end.is_of_part


def moments(hosts: Mapping[str, HostRecord]) -> list[Moment]:
    """Return, in order of time, all failures except consequences of the agent's orders."""
    ends = [
        item.ended_at
        for record in hosts.values()
        for item in record.facts.exits
        if item.exit_code != 0 and not item.is_consequence
    ]
    until = min(ends, default=None)
    found = [moment for name in hosts for moment in _of_host(name, hosts, until)]
    found += _of_gpus(hosts, found)
    return _each_rank_once(sorted(found, key=lambda moment: moment.at))


def _each_rank_once(found: Sequence[Moment]) -> list[Moment]:
    """Drop a second host's report of a rank: mpirun prints the output of other hosts' ranks on its own host."""
    hosts = {moment.rank: moment.host for moment in reversed(found) if moment.rank is not None}
    return [moment for moment in found if moment.rank is None or hosts[moment.rank] == moment.host]


def _of_host(name: str, hosts: Mapping[str, HostRecord], until: datetime | None) -> Iterator[Moment]:
    record = hosts[name]
    facts = record.facts
    clues = {clue.rank: clue for clue in sorted(facts.clues, key=lambda clue: clue.at, reverse=True)}
    of_exits = [(item, clues.pop(item.rank, None)) for item in facts.exits]
    # The remaining clues come from ranks that the program's own launcher started, here or on another host: the agent
    # knows what they reported, not how they ended.
    clues.pop(None, None)
    for item, clue in of_exits:
        if item.exit_code == 0:  # the process survived any error that it printed
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
    if record.lost_why:
        is_lost = facts.phase is HostPhase.LOST  # otherwise its program had ended before the loss was known
        yield Moment(
            at=facts.phase_started_at if is_lost else (record.last_sign_at or facts.phase_started_at),
            host=name,
            rank=None,
            weight=Weight.OWN,
            fault=Fault.INFRASTRUCTURE,
            words=record.lost_why,
            may_retry=True,
            not_before=record.last_sign_at,
            is_of_part=record.is_cut_off,
        )


def _of_gpus(hosts: Mapping[str, HostRecord], found: Sequence[Moment]) -> list[Moment]:
    """Return the failures of GPUs that explain later failures on their hosts."""
    errors = [
        (name, error)
        for name, record in hosts.items()
        for error in record.facts.gpu_errors
        if is_of_hardware(error.xid)
    ]
    if not errors or any(_is_of_the_code(moment.words) for moment in found):
        return []
    times: dict[str, list[datetime]] = {name: [] for name, _ in errors}
    for moment in sorted(found, key=lambda moment: moment.at):
        if moment.host in times and (moment.may_be_answer or moment.fault is Fault.INFRASTRUCTURE):
            times[moment.host].append(moment.at)
    return [_of_gpu(name, error) for name, error in errors if _explains(error, times[name])]


def _explains(error: GpuError, times: Sequence[datetime]) -> bool:
    """Whether one of the ascending times is at most GPU_S after the earliest possible time of a GPU's error."""
    place = bisect_left(times, error.not_before)
    return place < len(times) and times[place] - error.not_before <= timedelta(seconds=GPU_S)


def _of_gpu(name: str, error: GpuError) -> Moment:
    return Moment(
        at=error.not_before,
        host=name,
        rank=None,
        weight=Weight.OWN,
        fault=Fault.INFRASTRUCTURE,
        words=f"GPU {error.gpu} has failed: {xid_in_words(error.xid)}",
        may_retry=True,
        not_before=error.not_before,
        is_of_part=True,
    )


def _stands_alone(facts: HostFacts) -> bool:
    """Whether a host's failure is a cause of its own: no failed process shows it, and no process survived it."""
    assert facts.failure is not None
    has_failed_exit = any(item.exit_code != 0 and not item.is_consequence for item in facts.exits)
    has_survived = bool(facts.exits) and all(item.exit_code == 0 for item in facts.exits)
    return not ((has_failed_exit or has_survived) and facts.failure.fault == Fault.ALGORITHM.value)


def _of_exit(name: str, item: ProcessExit, clue: Clue | None, failure: Failure | None) -> Moment:
    """Return the failure of a process, described by its text or by the cause that the agent knows for certain."""
    who = "the program" if item.rank is None else f"rank {item.rank}"
    is_certain = failure is not None and _is_certain(failure) and not item.is_consequence
    said_code = _SAID_CODE.fullmatch(clue.text) if clue is not None and item.is_consequence else None
    if said_code is not None:  # the process was ending by itself when the agent's order arrived
        item = replace(item, exit_code=int(said_code[1]), signal=None, is_consequence=False)
    how = f"{who} ended with exit code {item.exit_code}" if item.exit_code is not None else None
    words = how or f"{who} was ended by {signal_name(item.signal)}"
    if item.is_consequence:
        words = who
    elif item.signal == signal.SIGKILL:
        clue = None  # SIGKILL leaves no last message: the process had survived any error that it printed
    weight = Weight.OWN
    if failure is not None and is_certain:
        words = failure.message
    elif clue is not None and clue.text != f"SystemExit: exit code {item.exit_code}":
        words = f"{who if how else words}: {clue.text}"  # FailureReason always adds the exit code at its end
        weight = weigh(clue.text)
    elif item.signal != signal.SIGKILL and failure is not None and failure.message.startswith(words):
        words = failure.message  # it contains the last line that the process printed
        weight = weigh(words)
    return Moment(
        at=min(clue.at, item.ended_at) if clue is not None else item.ended_at,
        host=name,
        rank=item.rank,
        weight=weight,
        fault=Fault.ALGORITHM,
        words=words,
        exit_code=None if item.is_consequence else _shell_code(item),
        not_before=_before_reaping(item.ended_at, item.signal) if not item.is_consequence else None,
        is_mute=_is_mute(clue),
        may_be_answer=not is_certain
        and (item.is_consequence or item.signal in _ANSWERING)
        and not _is_of_the_code(words),
    )


def _failure_for(item: ProcessExit, facts: HostFacts) -> Failure | None:
    """Return the host's failure if it may belong to this process: a memory limit ends single processes, by SIGKILL.

    A launcher reports such an end as an exit code, so if no process was killed, the failure may belong to any process.
    """
    failure = facts.failure
    if failure is None or not failure.message.startswith(OUT_OF_MEMORY) or item.signal == signal.SIGKILL:
        return failure
    was_killed = any(other.signal == signal.SIGKILL and not other.is_consequence for other in facts.exits)
    return None if was_killed else failure


def _of_clue(name: str, clue: Clue, exit_code: int | None, hosts: Mapping[str, HostRecord]) -> Moment:
    """Return the failure of a rank of the program's own launcher, as the rank or the launcher describes it."""
    words, weight = f"rank {clue.rank}: {clue.text}", weigh(clue.text)
    by_signal = _MPIRUN.search(clue.text)
    number = int(by_signal[2]) if by_signal is not None else None
    if by_signal is not None:
        name, weight = (by_signal[1] if by_signal[1] in hosts else name), Weight.OWN
        words = f"rank {clue.rank} was ended by {signal_name(int(by_signal[2]))}"
        failure = hosts[name].facts.failure
        if failure is not None and _is_certain(failure):
            words = failure.message
    return Moment(
        at=clue.at,
        host=name,
        rank=clue.rank,
        weight=weight,
        fault=Fault.ALGORITHM,
        words=words,
        exit_code=exit_code,
        not_before=_before_reaping(clue.at, number),
        is_mute=_is_mute(clue),
        may_be_answer=number is None and not _is_of_the_code(words),
    )


def _before_reaping(at: datetime, number: int | None) -> datetime | None:
    """Return a time at which a process killed by SIGKILL had certainly not ended; None for any other end.

    `at` is the time when the end was noticed.

    No other signal needs such a time: a lost peer may make a program abort or crash, which is a reaction. A death by
    SIGKILL is never such a reaction: only the agent kills a program because of a lost peer, and it marks such ends.
    """
    if number != signal.SIGKILL:
        return None
    try:
        return at - timedelta(seconds=REAP_S)
    except OverflowError:  # an agent reported the time; an extreme value must not make the report fail
        return at


def _is_of_the_code(words: str) -> bool:
    """Whether the words describe a failure that no peer can have caused."""
    return is_of_the_code(words) or is_misuse(words)


def _is_mute(clue: Clue | None) -> bool:
    """Whether no exception explains an end; the program's last line may be unrelated to it."""
    return clue is None or class_of(clue.text) == "SystemExit"


def _is_certain(failure: Failure | None) -> bool:
    """Whether the agent knows for certain why processes of its host ended, regardless of their output."""
    return failure is not None and failure.message.startswith((OUT_OF_MEMORY, FULL_DISK))


def _launcher_code(failed: Sequence[ProcessExit]) -> int | None:
    """Return the exit code of a host's only process without a rank, a launcher that passes on a rank's exit code."""
    codes = [_shell_code(item) for item in failed if item.rank is None]
    return codes[0] if len(codes) == 1 else None


def _shell_code(item: ProcessExit) -> int:
    """Return a process's exit code as a shell reports it."""
    return item.exit_code if item.exit_code is not None else _SIGNAL_BASE + (item.signal or 0)


def _failure_file(hosts: Mapping[str, HostRecord], first: Moment) -> str | None:
    """Return the failure file of the host where the cause was found; else the first host's failure file, if any."""
    own = hosts[first.host].facts.failure_file
    return own or next((record.facts.failure_file for record in hosts.values() if record.facts.failure_file), None)
