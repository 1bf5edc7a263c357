"""What a failure's words say of its kind, and whether trying again can help. Pure.

Where: `first_cause` asks for the one cause that it has found. A verdict is for people and for retry policies; the
prefix of FailureReason follows from the fault, not from the verdict.

A retry helps against what comes and goes: hosts, links, a process that somebody else has killed. What the same code
does with the same data again - a missing module, a bad value, too little memory - is never called retryable.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import StrEnum

from clary.contract.errors import Fault


class Verdict(StrEnum):
    """Where to look first."""

    USER = "user"  # the training program
    DATA = "data"  # what it reads
    MEMORY = "memory"
    DISK = "disk"
    NETWORK = "network"
    HOST = "host"  # lost, or a process that something outside the job has killed
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
# The first pattern that is found decides: the certain before the general.
_BY_WORDS: tuple[tuple[re.Pattern[str], Judgement], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), Judgement(verdict=verdict, is_retryable=is_retryable))
    for pattern, verdict, is_retryable in (
        (r"out ?of ?memory|memoryerror|cannot allocate memory|bad_alloc", Verdict.MEMORY, False),
        (r"no space left on device|errno 28\b|disk quota exceeded", Verdict.DISK, False),
        (r"modulenotfounderror|importerror|syntaxerror|indentationerror|nameerror|attributeerror", Verdict.USER, False),
        (r"command not found|exit code 12[67]\b|no such program|can't open file", Verdict.LAUNCHER, False),
        (r"/opt/ml/input/data|unpicklingerror|jsondecodeerror|unicodedecodeerror|badzipfile", Verdict.DATA, False),
        (r"\bchannel\b|bucket|\bs3://", Verdict.DATA, False),
        (
            r"connection(?:reset|refused|aborted)?error|connection (?:reset|refused|closed|timed out)|gaierror"
            r"|distbackenderror|distnetworkerror|timeouterror|timed out|endpointconnectionerror|broken pipe"
            r"|network is unreachable|no route to host|object store",
            Verdict.NETWORK,
            True,
        ),
    )
)
# Ended by these from outside, a process was somebody's victim; by any other signal, its own.
_FROM_OUTSIDE = re.compile(r"was ended by signal (\d+)")
_VICTIMS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
_MPIRUN_SIGNAL = re.compile(r"exited on signal (\d+)")


def judge(fault: Fault, words: str, *, may_retry: bool = False) -> Judgement:
    """Return the verdict on a failure.

    Args:
        fault: who is to blame.
        words: the cause as FailureReason tells it.
        may_retry: whether what raised the error said that a retry can help; believed where no words say otherwise.
    """
    by_words = next((judgement for pattern, judgement in _BY_WORDS if pattern.search(words)), None)
    if fault is Fault.ALGORITHM:
        if by_words is not None:
            return by_words
        found = _FROM_OUTSIDE.search(words) or _MPIRUN_SIGNAL.search(words)
        if found is not None and int(found[1]) in _VICTIMS:
            return Judgement(verdict=Verdict.HOST, is_retryable=True)
        return Judgement(verdict=Verdict.USER, is_retryable=False)
    if fault is Fault.USER:
        if by_words is None:
            return Judgement(verdict=Verdict.USER, is_retryable=may_retry)
        return Judgement(verdict=by_words.verdict, is_retryable=by_words.is_retryable and may_retry)
    if fault is Fault.INFRASTRUCTURE and by_words is not None and by_words.verdict in (Verdict.DISK, Verdict.NETWORK):
        return Judgement(verdict=by_words.verdict, is_retryable=True)
    return _BY_FAULT[fault]
