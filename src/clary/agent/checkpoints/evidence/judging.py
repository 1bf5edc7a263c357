"""Decision whether a file is whole, from observations of it. Pure.

[Note: meaning of a close] A writer that closes a file has finished it, unless the kernel closed it for an ending
process. So a close counts if every process of the program that could have been the writer was seen alive after it, or
ended with 0. A process that was killed while it had the file open for writing leaves a torn file: only a rename or a
new write can make that file whole again. If the killed process was merely a possible writer, only the time counts for
which the file has been at rest. A marker does not outweigh a known death: ranks write in parallel, and the rank that
writes the marker may not know of the killed rank.

[Note: rest] A file without any evidence is judged by time alone: it has to rest for ten times the longest observed
pause of a writer, and for `least_rest_s` at least. A file that counts as whole by rest alone is restored, but `verify`
never calls it whole. A file that a process has open for writing never counts as at rest, however long it is unchanged,
even if the process only appends to it.

[Note: logs] Any beginning of a log is a valid log, so a log may be taken whenever it is unchanged for a moment, even
while a process has it open. Only its name distinguishes a log from a checkpoint that is being written, and only a few
names count as names of logs.
"""

from __future__ import annotations

from collections.abc import Sequence

from clary.agent.checkpoints.evidence.observations import Death, Decision, Hold, Observation, ProgramEnd
from clary.contract.checkpoint_evidence import Evidence

REST_FACTOR = 10  # times the longest observed pause


def judge(
    seen: Observation,
    deaths: Sequence[Death],
    *,
    now_s: float,
    least_rest_s: float,
    end: ProgramEnd | None = None,
) -> Decision:
    """Decide whether a file is whole.

    Args:
        deaths: ends of the program's processes, except those known to have ended with 0.
        least_rest_s: minimum rest of a file without other evidence that it is whole.
        end: how the program has ended; None while the program runs.
    """
    if seen.is_log:
        return Decision(is_whole=True, evidence=Evidence.LOG)
    if seen.hold is Hold.HELD:
        who = ", ".join(seen.holders) or "a process"
        return Decision(is_whole=False, reason=f"{who} has it open for writing", is_blocking=True)
    if seen.is_named:
        return Decision(is_whole=True, evidence=Evidence.RENAMED)
    possible = [death for death in deaths if _may_have_closed(seen, death)]
    told = [death for death in possible if death.pid in seen.writers or (death.is_sudden and seen.close is not None)]
    known = [death for death in told if death.wait_status is not None]
    if seen.marker and seen.is_marker_seen and not known:
        return Decision(is_whole=True, evidence=Evidence.MARKED)
    if end is ProgramEnd.FINISHED:
        return _at_good_end(seen, possible, known, now_s=now_s)
    if known:
        reason = f"{known[0].words} before it had closed it"
        return Decision(is_whole=False, reason=reason, is_blocking=True, is_torn=True)
    if seen.was_disk_full:
        reason = "the disk was full while it was written"
        return Decision(is_whole=False, reason=reason, is_blocking=True, is_torn=True)
    if seen.close is not None and not possible:
        return Decision(is_whole=True, evidence=Evidence.CLOSED)
    if seen.marker and not told:
        return Decision(is_whole=True, evidence=Evidence.MARKED)
    return _by_rest(seen, possible, now_s=now_s, least_rest_s=least_rest_s, end=end)


def needed_rest_s(longest_pause_s: float, least_rest_s: float) -> float:
    """Return the seconds that a file has to rest to count as whole by rest alone."""
    return max(least_rest_s, REST_FACTOR * longest_pause_s)


def _at_good_end(seen: Observation, possible: Sequence[Death], known: Sequence[Death], *, now_s: float) -> Decision:
    """Judge a file after the program has ended with 0; the file is always stored, even if it may not be whole."""
    if known:
        why = f"{known[0].words} before it had closed it, though the program ended with 0"
    elif seen.was_disk_full:
        why = "the disk was full while it was written"
    elif seen.marker:
        return Decision(is_whole=True, evidence=Evidence.MARKED)
    elif seen.close is None and seen.hold is Hold.UNKNOWN:
        # a writer on another machine may still run
        why = "nothing says who wrote it, or whether another machine still does"
    else:
        is_closed = seen.close is not None and not possible
        return Decision(is_whole=True, evidence=Evidence.CLOSED if is_closed else Evidence.ENDED)
    return Decision(is_whole=True, evidence=Evidence.RESTED, reason=why, rested_s=max(0.0, now_s - seen.since_s))


def _may_have_closed(seen: Observation, death: Death) -> bool:
    """Whether a process that was ending may have closed the file, in an observed close or an unobserved one."""
    if seen.writers and death.pid not in seen.writers:
        return False
    if seen.close is None:
        return death.noticed_s >= seen.since_s
    return death.alive_s < seen.close.before_s and death.noticed_s >= seen.close.after_s


def _by_rest(
    seen: Observation, possible: Sequence[Death], *, now_s: float, least_rest_s: float, end: ProgramEnd | None
) -> Decision:
    rested_s = now_s - seen.since_s
    needed_s = needed_rest_s(seen.longest_pause_s, least_rest_s)
    why = f"{possible[0].words}, and may have been its writer" if possible else "nothing says who wrote it"
    if rested_s >= needed_s:
        return Decision(is_whole=True, evidence=Evidence.RESTED, reason=why, rested_s=rested_s)
    if end is ProgramEnd.BROKEN:
        reason = f"{why}, and the program was killed or failed"
        return Decision(is_whole=False, evidence=Evidence.RESTED, reason=reason, is_blocking=True, is_torn=True)
    return Decision(
        is_whole=False,
        evidence=Evidence.RESTED,
        reason=f"{why}: it has to rest for {needed_s:.0f} s",
        rested_s=rested_s,
    )
