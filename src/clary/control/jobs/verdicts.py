"""Verdict on a failure, by its text: where to look first, and whether a retry can help. Pure.

Where: `first_cause` calls `judge` for the first cause, `transitions` for a failed launch and an overdue upload. A
verdict is for people and for retry policies; the prefix of FailureReason follows from the fault, not from the verdict.

A retry helps against transient faults: a fault of a host or of a link, or a process that was killed from outside. A
program's failure that recurs with the same code and data (a missing module, a bad value, too little memory) is never
called retryable, and neither is a program that is missing on the machine.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import StrEnum

from clary.base.errors import Fault
from clary.control.jobs.failure_words import Weight, is_misuse, is_of_the_code, weigh


class Verdict(StrEnum):
    """Place where a person should look first."""

    USER = "user"  # the training program
    DATA = "data"  # data that the program reads
    MEMORY = "memory"
    DISK = "disk"
    NETWORK = "network"
    HOST = "host"  # the host was lost, or a process was killed from outside the job
    LAUNCHER = "launcher"  # the program could not be started
    INTERNAL = "internal"  # a defect of Clary


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict, and whether the same job can succeed later without a change."""

    verdict: Verdict
    is_retryable: bool


_BY_FAULT = {
    Fault.CAPACITY: Judgement(verdict=Verdict.HOST, is_retryable=True),
    Fault.INFRASTRUCTURE: Judgement(verdict=Verdict.HOST, is_retryable=True),
    Fault.INTERNAL: Judgement(verdict=Verdict.INTERNAL, is_retryable=False),
}
_MEMORY = r"out ?of ?memory|memoryerror|cannot allocate memory|bad_alloc"
_DISK = r"no space left on device|errno 28\b|disk quota exceeded"
_NETWORK = (
    r"gaierror|timeouterror|endpointconnectionerror|network is unreachable|no route to host|failure in name resolution"
    r"|connection(?:reset|refused|aborted)error|connection (?:reset by peer|refused|timed out)|brokenpipeerror"
)
# Timeouts of ranks that wait for each other come more often from mismatched collectives than from a cut link: no retry
# is advised.
_LOST_STEP = (
    r"timed out waiting \d+ms for (?:recv|send) operation|diststoreerror: wait timeout|monitoredbarrier"
    r"|watchdog caught collective operation timeout|collectivetimeout"
)


def _table(*rows: tuple[str, Verdict, bool]) -> tuple[tuple[re.Pattern[str], Judgement], ...]:
    return tuple(
        (re.compile(pattern, re.IGNORECASE), Judgement(verdict=verdict, is_retryable=is_retryable))
        for pattern, verdict, is_retryable in rows
    )


# The first matching pattern decides: specific patterns precede general ones.
_OF_PROGRAMS = _table(
    (_MEMORY, Verdict.MEMORY, False),
    (_DISK, Verdict.DISK, False),
    (r"modulenotfounderror|importerror|syntaxerror|indentationerror|nameerror|attributeerror", Verdict.USER, False),
    (r"command not found|exit code 12[67]\b|no such program|can't open file", Verdict.LAUNCHER, False),
    (r"/opt/ml/input/data|unpicklingerror|jsondecodeerror|unicodedecodeerror|badzipfile", Verdict.DATA, False),
    (r"\bnosuch(?:bucket|key)\b", Verdict.DATA, False),
)
_OF_CONNECTIONS = _table((_LOST_STEP, Verdict.NETWORK, False), (_NETWORK, Verdict.NETWORK, True))
# Messages of Clary itself, in which `channel` means an input channel of the request.
_OF_HOSTS = _table(
    (_MEMORY, Verdict.MEMORY, False),
    (_DISK, Verdict.DISK, False),
    (r"command not found|no such program|is no program", Verdict.LAUNCHER, False),
    (rf"{_NETWORK}|timed out|object store|no answer from", Verdict.NETWORK, True),
    (r"\bchannel\b|bucket|\bs3://", Verdict.DATA, False),
)
# Programs of the machine that are not installed (`agent.environments`): every attempt would fail like this within a
# second.
_NOT_INSTALLED = re.compile(
    r"neither beside the agent's interpreter nor in PATH|interpreter .+ cannot be used: there is no such file"
)
# A process ended by one of these signals was killed from outside; any other signal comes from the process itself.
_FROM_OUTSIDE = re.compile(r"was ended by signal (\d+)")
_VICTIMS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
_MPIRUN_SIGNAL = re.compile(r"exited on signal (\d+)")


def judge(fault: Fault, words: str, *, may_retry: bool = False) -> Judgement:
    """Return the verdict on a failure.

    Args:
        fault: the party that caused the failure.
        words: the cause as in FailureReason.
        may_retry: whether the error was raised as retryable; used for faults of the user.
    """
    if fault is Fault.ALGORITHM:
        return _of_a_program(words)
    if fault is Fault.INFRASTRUCTURE and _NOT_INSTALLED.search(words):
        return Judgement(verdict=Verdict.LAUNCHER, is_retryable=False)
    by_words = _find(_OF_HOSTS, words)
    if fault is Fault.USER:
        if by_words is None:
            return Judgement(verdict=Verdict.USER, is_retryable=may_retry)
        return Judgement(verdict=by_words.verdict, is_retryable=by_words.is_retryable and may_retry)
    if fault is Fault.INFRASTRUCTURE and by_words is not None and by_words.verdict in (Verdict.DISK, Verdict.NETWORK):
        return Judgement(verdict=by_words.verdict, is_retryable=True)
    return _BY_FAULT[fault]


def _of_a_program(words: str) -> Judgement:
    by_words = _find(_OF_PROGRAMS, words)
    if by_words is not None:
        return by_words
    if is_of_the_code(words) or is_misuse(words):
        return Judgement(verdict=Verdict.USER, is_retryable=False)
    by_words = _find(_OF_CONNECTIONS, words)
    if by_words is not None:
        return by_words
    if weigh(words) is Weight.EFFECT:  # the cause has not been reported
        return Judgement(verdict=Verdict.NETWORK, is_retryable=True)
    found = _FROM_OUTSIDE.search(words) or _MPIRUN_SIGNAL.search(words)
    if found is not None and int(found[1]) in _VICTIMS:
        return Judgement(verdict=Verdict.HOST, is_retryable=True)
    return Judgement(verdict=Verdict.USER, is_retryable=False)


def _find(table: tuple[tuple[re.Pattern[str], Judgement], ...], words: str) -> Judgement | None:
    return next((judgement for pattern, judgement in table if pattern.search(words)), None)
