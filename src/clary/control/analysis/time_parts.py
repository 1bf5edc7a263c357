"""Timeline of each host's activity, from the job's creation to its end, without gaps. Pure.

Where: the ledger adds the stretches up. Rows of SecondaryStatusTransitions show the state of the job as a whole; facts
of each host (timings of its preparation, its connections to the master port, ends of its processes, its newest
checkpoint) tell how the host spent the time of a row. Time that the facts do not explain is counted as the row's
status. Times by the hosts' clocks are moved into their row, so that a stretch is never negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from clary.contract.agent_protocol import HostFacts, HostPhase
from clary.contract.statuses import SecondaryStatus
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.job_state import is_of_queue
from clary.control.jobs.training_job import EndCause, StatusTransition, TrainingJob


class TimePart(StrEnum):
    """Use of a host's time; docs/spot.md maps the names to those of ML goodput measurement."""

    QUEUED = "queued"  # no host: the job waits for capacity, for its first or a later attempt
    STARTING = "starting"  # hosts and processes are being started
    DOWNLOADING = "downloading"  # code and channels are fetched
    RESTORING = "restoring"  # checkpoints are restored, without a download at the same time
    INSTALLING = "installing"  # the environment is installed, without a download or restore at the same time
    RENDEZVOUS = "rendezvous"  # the program ran, and not all of its ranks had connected
    PRODUCTIVE = "productive"  # the program ran, and its work was kept
    LOST_TO_RESTART = "lost_to_restart"  # the program ran, and the next attempt began from an earlier point
    LOST_TO_FAILURE = "lost_to_failure"  # the program ran, the job failed, and no checkpoint holds its work
    LOST_TO_STOP = "lost_to_stop"  # the program ran, the job was stopped, and no model or checkpoint holds its work
    STALLED = "stalled"  # one host or process had failed, and the others still ran
    CHECKPOINTING = "checkpointing"  # the program had ended, and its last checkpoints were being stored
    STOPPING = "stopping"  # from the order to stop until all processes have ended
    UPLOADING = "uploading"  # model and output are uploaded
    IDLE_WAITING = "idle_waiting"  # the host had done its part, and other hosts had not


@dataclass(frozen=True)
class Stretch:
    """A span of one host's time with one use."""

    part: TimePart
    start: datetime
    end: datetime

    @property
    def length(self) -> timedelta:
        """Duration of the stretch."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """Facts of one attempt that are needed to cut time."""

    facts: Mapping[str, HostFacts]  # facts of each host, at the attempt's end or now
    ended_at: datetime | None = None  # when the hosts of an attempt that ended early were released
    loss: TimePart | None = None  # part that counts the time whose work no checkpoint holds; None: all work is kept


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A span of time in which the job as a whole had one status."""

    status: SecondaryStatus | None  # None: no hosts
    start: datetime
    end: datetime
    attempt: _Attempt
    is_prepared: bool = False  # for a row Downloading: whether every host has finished it


_ENDINGS = (SecondaryStatus.INTERRUPTED, SecondaryStatus.RESTARTING)
_BEFORE_PROGRAM = (HostPhase.LAUNCHING, HostPhase.PREPARING, HostPhase.PREPARED)
_NEVER = datetime.max.replace(tzinfo=UTC)
# A host that has not connected this long after the last connected host, or after the programs' start, takes part in no
# rendezvous: not every program uses the master port. The time is longer than a cold import.
_PATIENCE = timedelta(minutes=5)
_LONGEST_S = 1e9  # largest accepted timing; a value above thirty years cannot be a measurement


def cut_time(job: TrainingJob, *, now: datetime) -> dict[str, tuple[Stretch, ...]]:
    """Return each host's stretches, longer than 0 and without gaps; the first begins with the job.

    Args:
        job: the record.
        now: end of the last stretch of a job that has not ended; moved to the job's last transition if it is earlier.
    """
    attempts = _attempts(job)
    pieces = list(_pieces(job, attempts, _end_of(job, now)))
    return {name: _joined(_of_host(name, pieces)) for name in _host_names(job, attempts)}


def attempts_of_rows(rows: Sequence[StatusTransition]) -> list[int]:
    """Return for each row the index of its attempt, by the order of rows, since times may be equal."""
    indices: list[int] = []
    for row in rows:
        begins = row.status is SecondaryStatus.STARTING and bool(indices) and rows[len(indices) - 1].status in _ENDINGS
        indices.append((indices[-1] if indices else 0) + begins)
    return indices


def _end_of(job: TrainingJob, now: datetime) -> datetime:
    last = job.transitions[-1] if job.transitions else None
    begun = job.created_at if last is None else max(job.created_at, last.started_at)
    if job.is_terminal and last is not None:
        return max(begun, last.ended_at or begun)
    return max(begun, now)


def _attempts(job: TrainingJob) -> list[_Attempt]:
    restart = TimePart.LOST_TO_RESTART
    past = [_Attempt(facts=attempt.hosts, ended_at=attempt.ended_at, loss=restart) for attempt in job.past_attempts]
    facts = {name: record.facts for name, record in job.hosts.items()}
    return [*past, _Attempt(facts=facts, loss=restart if job.ending is not None else _loss(job))]


def _loss(job: TrainingJob) -> TimePart | None:
    """Return the reason why the last attempt's unsaved time is lost; a stopping job may still store its model."""
    if job.end_cause is EndCause.FAILURE:
        return TimePart.LOST_TO_FAILURE
    is_stopped = job.is_terminal and job.end_cause is not EndCause.SUCCESS
    return TimePart.LOST_TO_STOP if is_stopped and job.model_artifacts_uri is None else None


def _host_names(job: TrainingJob, attempts: list[_Attempt]) -> list[str]:
    """Return the names of the job's hosts, or of the hosts that it requests if it never had hosts."""
    names = dict.fromkeys(name for attempt in attempts for name in attempt.facts)
    return list(names) or [f"algo-{index + 1}" for index in range(JobRequest(job.request).num_hosts)]


def _pieces(job: TrainingJob, attempts: list[_Attempt], end: datetime) -> Iterator[_Piece]:
    """Yield the job's time, cut at its rows and at the release of attempts that ended early."""
    start = job.created_at
    for index, (row, number) in enumerate(zip(job.transitions, attempts_of_rows(job.transitions), strict=True)):
        following = job.transitions[index + 1] if index + 1 < len(job.transitions) else None
        attempt = attempts[min(number, len(attempts) - 1)]
        # The time before the first row is counted as part of that row.
        stop = max(start, min(end, following.started_at)) if following is not None else end
        status: SecondaryStatus | None = row.status
        if row.status is SecondaryStatus.PENDING or (
            row.status is SecondaryStatus.STARTING and is_of_queue(job, index)
        ):
            status = None
        gone_at = stop
        if row.status in _ENDINGS and attempt.ended_at is not None:
            gone_at = min(stop, max(start, attempt.ended_at))
        is_prepared = following is not None and following.status is SecondaryStatus.TRAINING
        yield _Piece(status=status, start=start, end=gone_at, attempt=attempt, is_prepared=is_prepared)
        yield _Piece(status=None, start=gone_at, end=stop, attempt=attempt)
        start = stop
    yield _Piece(status=None, start=start, end=end, attempt=attempts[-1])


def _of_host(name: str, pieces: list[_Piece]) -> Iterator[Stretch]:
    for piece in pieces:
        facts = piece.attempt.facts.get(name)
        match piece.status:
            case None:
                yield Stretch(TimePart.QUEUED, piece.start, piece.end)
            case SecondaryStatus.STARTING:
                yield Stretch(TimePart.STARTING, piece.start, piece.end)
            case SecondaryStatus.DOWNLOADING:
                yield from _preparation(facts, piece)
            case SecondaryStatus.TRAINING:
                yield from _running(facts, piece)
            case SecondaryStatus.UPLOADING:
                yield from _uploading(name, facts, piece)
            case _:  # the job is ending; a terminal row has no duration
                yield from _stopping(facts, piece)


def _preparation(facts: HostFacts | None, piece: _Piece) -> Iterator[Stretch]:
    """Cut the preparation at its timings, which all count from its start; overlapping steps count once."""
    timings = {} if facts is None else facts.timings_s
    downloaded = (piece.start + _downloaded(timings), TimePart.DOWNLOADING)
    restored = (piece.start + _restored(timings), TimePart.RESTORING)
    installed = (piece.start + _prepared(timings), TimePart.INSTALLING)
    if not timings:  # the only known fact about the host is the order to prepare
        yield from _cut(piece, rest=TimePart.DOWNLOADING)
    elif piece.is_prepared:
        slowest = max(_prepared(other.timings_s) for other in piece.attempt.facts.values())
        waited = (piece.start + slowest, TimePart.IDLE_WAITING)
        yield from _cut(piece, downloaded, restored, installed, waited, rest=TimePart.STARTING)
    elif facts is not None and facts.phase is HostPhase.PREPARED:
        yield from _cut(piece, downloaded, restored, installed, rest=TimePart.IDLE_WAITING)
    elif "code" in timings and "environment" not in timings:
        yield from _cut(piece, downloaded, rest=TimePart.INSTALLING)
    else:
        yield from _cut(piece, rest=TimePart.DOWNLOADING)


def _running(facts: HostFacts | None, piece: _Piece) -> Iterator[Stretch]:
    failures = [at for other in piece.attempt.facts.values() if (at := _failure_time(other)) and at < piece.end]
    productive_until = min([_program_end(facts) or piece.end, piece.end, *failures])
    kept_until = productive_until
    if piece.attempt.loss is not None:
        kept_until = min(productive_until, _committed_at(piece.attempt) or piece.start)
    meeting = _met_at(facts, piece.attempt, began_at=piece.start, until=min([piece.end, *failures]))
    met_at = min(productive_until, meeting or piece.start)
    marks = (
        (met_at, TimePart.RENDEZVOUS),
        (kept_until, TimePart.PRODUCTIVE),
        (productive_until, piece.attempt.loss or TimePart.PRODUCTIVE),
    )
    if failures:
        yield from _cut(piece, *marks, rest=TimePart.STALLED)
    else:
        yield from _cut(piece, *marks, *_after_program(facts, piece), rest=TimePart.STOPPING)


def _stopping(facts: HostFacts | None, piece: _Piece) -> Iterator[Stretch]:
    marks = [] if (at := _program_end(facts)) is None else [(at, TimePart.STOPPING)]
    yield from _cut(piece, *marks, *_after_program(facts, piece), rest=TimePart.STOPPING)


def _uploading(name: str, facts: HostFacts | None, piece: _Piece) -> Iterator[Stretch]:
    """Cut the upload: every host except the leader stages its share, then the leader merges all shares."""
    names = list(piece.attempt.facts)
    took = None if facts is None or "upload" not in facts.timings_s else _took(facts.timings_s, "upload")
    leader = next((other for other in names if piece.attempt.facts[other].uploaded), names[0] if names else name)
    if took is None:
        is_waiting = facts is not None and facts.phase is HostPhase.EXITED and len(names) > 1
        yield from _cut(piece, rest=TimePart.IDLE_WAITING if is_waiting else TimePart.UPLOADING)
    elif name == leader:
        waits_until = piece.start if len(names) == 1 else piece.end - took
        yield from _cut(piece, (waits_until, TimePart.IDLE_WAITING), rest=TimePart.UPLOADING)
    else:
        yield from _cut(piece, (piece.start + took, TimePart.UPLOADING), rest=TimePart.IDLE_WAITING)


def _after_program(facts: HostFacts | None, piece: _Piece) -> Iterator[tuple[datetime, TimePart]]:
    """Yield the ends of storing checkpoints and of waiting for other hosts, for a host whose program has ended."""
    done_at = _done_at(facts)
    if done_at is None:
        return
    yield done_at, TimePart.CHECKPOINTING
    all_done = [_done_at(other) for other in piece.attempt.facts.values()]
    yield max(at for at in all_done if at is not None) if None not in all_done else piece.end, TimePart.IDLE_WAITING


def _cut(piece: _Piece, *marks: tuple[datetime, TimePart], rest: TimePart) -> Iterator[Stretch]:
    """Yield a piece cut at marks, each the end of a part; marks outside of the piece are moved to its ends."""
    start = piece.start
    for mark, part in marks:
        stop = min(max(mark, start), piece.end)
        yield Stretch(part, start, stop)
        start = stop
    yield Stretch(rest, start, piece.end)


def _joined(stretches: Iterator[Stretch]) -> tuple[Stretch, ...]:
    joined: list[Stretch] = []
    for stretch in stretches:
        if stretch.start == stretch.end:
            continue
        if joined and joined[-1].part is stretch.part:
            joined[-1] = Stretch(stretch.part, joined[-1].start, stretch.end)
        else:
            joined.append(stretch)
    return tuple(joined)


def _downloaded(timings: Mapping[str, float]) -> timedelta:
    """Return when code and channels were fetched; they are fetched at the same time, after the tree is built."""
    channels = [_took(timings, part) for part in timings if part.startswith("channel:")]
    return _took(timings, "tree") + max([_took(timings, "code"), *channels])


def _restored(timings: Mapping[str, float]) -> timedelta:
    return _took(timings, "tree") + _took(timings, "checkpoints")


def _prepared(timings: Mapping[str, float]) -> timedelta:
    installed = _took(timings, "tree") + _took(timings, "code") + _took(timings, "environment")
    return max(_downloaded(timings), _restored(timings), installed)


def _took(timings: Mapping[str, float], part: str) -> timedelta:
    # Agents are trusted, but not with times beyond the range of dates.
    seconds = timings.get(part, 0.0)
    return timedelta(seconds=seconds if 0 <= seconds <= _LONGEST_S else 0.0)


def _program_end(facts: HostFacts | None) -> datetime | None:
    """Return when the last process of a host's program ended, or None while it runs or if it never ran."""
    if facts is None or facts.phase.may_run:
        return None
    return max((item.ended_at for item in facts.exits), default=None)


def _done_at(facts: HostFacts | None) -> datetime | None:
    ended_at = _program_end(facts)
    if facts is None or ended_at is None:
        return None
    stored_at = _stored_at(facts)
    return ended_at if stored_at is None else max(ended_at, stored_at)


def _met_at(facts: HostFacts | None, attempt: _Attempt, *, began_at: datetime, until: datetime) -> datetime | None:
    """Return when the last host of an attempt had connected to the others; `_NEVER` while a host is missing.

    Args:
        facts: facts of the host in question.
        attempt: attempt with the facts of all hosts.
        began_at: start of the programs.
        until: time until which programs ran without a failure.

    Returns: None if this host seems to take part in no rendezvous: no host connected, or this host alone did not
    connect in time.
    """
    last = _last_to_come(attempt, began_at)
    if last is None or facts is None:
        return None
    meets = _is_missing(facts) if facts.rendezvous_at is None else facts.rendezvous_at <= last
    is_open = until - max(began_at, last) < _PATIENCE
    if not meets or (facts.rendezvous_at is None and not is_open):
        return None
    return _NEVER if is_open and any(map(_is_missing, attempt.facts.values())) else last


def _last_to_come(attempt: _Attempt, began_at: datetime) -> datetime | None:
    """Return when the last awaited host connected, or None if no awaited host did."""
    last = None
    for at in sorted(at for facts in attempt.facts.values() if (at := facts.rendezvous_at) is not None):
        if at - max(began_at, last or began_at) > _PATIENCE:
            break
        last = at
    return last


def _is_missing(facts: HostFacts) -> bool:
    """Whether the connected hosts wait for this host."""
    if facts.rendezvous_at is not None:
        return False
    has_succeeded = bool(facts.exits) and all(item.exit_code == 0 and not item.is_consequence for item in facts.exits)
    return facts.phase in _BEFORE_PROGRAM or (facts.awaits_rendezvous and not has_succeeded)


def _failure_time(facts: HostFacts) -> datetime | None:
    """Return when a host or one of its processes first failed by itself; None without such a failure."""
    times = [item.ended_at for item in facts.exits if item.exit_code != 0 and not item.is_consequence]
    if facts.phase is HostPhase.LOST:
        times.append(facts.phase_started_at)
    return min(times, default=None)


def _committed_at(attempt: _Attempt) -> datetime | None:
    """Return when an attempt's last checkpoint sets were complete: the latest time among hosts with sets."""
    return max((at for facts in attempt.facts.values() if (at := _stored_at(facts))), default=None)


def _stored_at(facts: HostFacts) -> datetime | None:
    return None if facts.checkpoints is None else facts.checkpoints.committed_at
