"""The end of a program: its failure with the cause, the clues of its processes, and sentences on both.

Where: `host_life` calls `end_of` when every process has ended and the log has all output; the result becomes facts of
the host.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from clary.agent.autopsy.clues import bounded, merge
from clary.agent.log.host_log import HostLog
from clary.agent.supervisor.program_watch import ProgramWatch, exit_in_words
from clary.base.errors import Fault
from clary.contract.agent_protocol import Clue, Failure, ProcessExit
from clary.contract.failure_reasons import OUT_OF_MEMORY


@dataclass(frozen=True, kw_only=True)
class ProgramEnd:
    """The facts of a program that has ended.

    Attributes:
        failure: why the program has failed; None without a failure.
        clues: lines of its processes about their own failures.
        seconds: run time of the program.
        lines: log lines on the program's end.
        notes: warnings that `describe` shows.
    """

    failure: Failure | None
    clues: tuple[Clue, ...]
    seconds: float
    lines: tuple[str, ...]
    notes: tuple[str, ...] = ()


def end_of(
    watch: ProgramWatch, *, log: HostLog, records: Sequence[Clue], hang: Failure | None, now: datetime
) -> ProgramEnd:
    """Gather the facts of a program's end.

    Args:
        watch: the closed watch of the program.
        log: holds all output of the program.
        records: failure records that the ranks have written.
        hang: the failure of a program that was ended because it hangs; no other cause counts then.
        now: time of day.
    """
    failure, notes = hang, []
    if hang is None:
        failure, first = watch.failure(), watch.first_failure()
        if failure is not None and first is not None and failure.fault == Fault.ALGORITHM.value:
            failure = _with_cause(failure, full_disk=watch.full_disk, log=log, rank=first.rank)
        elif watch.full_disk is not None and watch.exits:
            # A program that ended with exit code 0 on a full disk has failed nevertheless: its files may be cut short,
            # and a job is never Completed while results may be missing. Its results are uploaded as for every failed
            # job.
            notes.append(f"{watch.full_disk}: results may be incomplete")
            failure = failure or Failure(fault=Fault.USER.value, message=notes[0])
    # Ranks that a launcher of another host has started leave records although every process of this host ends with exit
    # code 0.
    has_failed = any(item.exit_code != 0 for item in watch.exits)
    clues = merge(records, log.clues() if has_failed else ())
    seconds = time.monotonic() - watch.started_at_s
    return ProgramEnd(
        failure=failure,
        clues=bounded(clues, begin=now - timedelta(seconds=seconds + 1), end=now),
        seconds=seconds,
        lines=_summary(watch.exits, failure, seconds),
        notes=tuple(notes),
    )


def _with_cause(failure: Failure, *, full_disk: str | None, log: HostLog, rank: int | None) -> Failure:
    """Return the program's failure with its cause, if known: a full disk, or the error line in the program's log."""
    if failure.message.startswith(OUT_OF_MEMORY):
        return failure
    words = log.error_line(rank)
    causes = [failure.message, *([words] if words else [])]
    if full_disk is not None:
        causes.insert(0, full_disk)
    return replace(failure, message=": ".join(causes))


def _summary(exits: Sequence[ProcessExit], failure: Failure | None, seconds: float) -> tuple[str, ...]:
    """Return how the program ended, in one line if all processes ended in the same way."""
    words = {exit_in_words(item) for item in exits}
    who = "the program" if len(exits) == 1 else f"all {len(exits)} processes"
    if len(words) == 1:
        lines = [f"{who} ended with {words.pop()} after {seconds:.1f} s"]
    else:
        in_order = sorted(exits, key=lambda item: item.ended_at)
        lines = [f"rank {item.rank} ended with {exit_in_words(item)}" for item in in_order]
        lines.append(f"the program ended after {seconds:.1f} s")
    if failure is not None and failure.message.startswith(OUT_OF_MEMORY):
        lines.append(failure.message)
    return tuple(lines)
