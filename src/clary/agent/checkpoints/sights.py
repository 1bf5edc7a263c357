"""State of the checkpoint folder over successive scans ("looks"): changes, their times and their kinds. Pure.

Looks come in pairs, a moment apart, from one round to the next. A file is at rest if two looks that are at least that
moment apart saw it in the same state; until then it counts as busy.

[Note: noise] Some files are never at rest: a log, a counter, a checkpoint of every step. The others of their group do
not wait for them, or a folder with a log in it would be in no set before the program ends. But a shard that is being
written is busy too, and a set without it would be half a checkpoint. Time and size distinguish the two. These files are
noise:

- a file that another one replaces before it can be seen at rest, if it has changed repeatedly and no other file of the
  group has. Each version was whole, so no save is half done, and the file belongs to no other;
- a file that is busy for long and still small, if saves are done beside it: its name existed when the group was taken,
  or another file of the group was saved twice meanwhile. A new name alone may be a shard that is written slowly,
  whatever its size;
- a file of any size that is busy for very long, if its name existed before or its writer closes it each time.

Every other busy file, above all one with a new name, is treated as a save that is not finished: its group waits,
however long. A file that is known to be unfinished - a process has it open, or died writing it - is noise only once
another file was saved twice beside it. A set names the files that it lacks, except logs (`choosing`), because it may
then be incomplete.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from clary.agent.checkpoints.evidence.observations import Decision
from clary.agent.checkpoints.grouping import NOTHING, GroupContent
from clary.agent.checkpoints.scanning import FileFacts
from clary.contract.checkpoint_evidence import Evidence

_PATIENCE_INTERVALS = 10
_NOISE_INTERVALS = 2
_NOISE_S = 10.0  # independent of the interval, since the time of a save does not depend on it
_NOISE_BYTES_A_SECOND = 1_000_000  # bytes/s; slower than the slowest disk
_NUM_SAVES = 2  # saves of other files beside it; a single save may be another shard of its own save
_NUM_ALONE = 3  # three looks in a row do not all fall between the files of one save


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The interval between rounds of looks, and the limits of rest and patience."""

    settle_s: float  # a file that is unchanged for so long is at rest
    interval_s: float  # from one round to the next

    @property
    def patience_s(self) -> float:
        """How long a file may be busy until it is noise, and a group until its files are taken one by one."""
        return _PATIENCE_INTERVALS * self.interval_s

    @property
    def small_patience_s(self) -> float:
        """How long a file may be busy until it is noise, if it is small for that time."""
        return min(self.patience_s, max(_NOISE_S, _NOISE_INTERVALS * self.interval_s))


@dataclass(frozen=True, kw_only=True)
class FileSight:
    """A name in the folder; times are monotonic seconds."""

    facts: FileFacts | None  # None if the file does not exist any more
    since_s: float  # time of the first look that saw this state
    busy_since_s: float  # time of the first look that saw it busy, or of the last look that saw it at rest
    num_alone: int = 0  # number of looks that saw only it changed, since another file of the group last changed
    is_replaced: bool = False  # whether it was whole at the look before the last, and another file has replaced it
    taken: FileFacts | None = None  # its version in the newest set
    dirty_since_s: float | None = None  # time of the first look that saw another version than `taken`
    saved_s: tuple[float, ...] = ()  # times of the last two looks that saw a new whole version
    saved: FileFacts | None = None  # its state at the last of these looks
    decision: Decision | None = None  # the decision whether it is whole; None if it is unchanged since it was taken

    def is_at_rest(self, now_s: float, pace: Pace) -> bool:
        """Whether the look at `now_s` saw it at rest, and there is evidence that it is whole."""
        return now_s - self.since_s >= pace.settle_s and (self.decision is None or self.decision.is_whole)

    @property
    def is_unfinished(self) -> bool:
        """Whether its writer is known not to have finished it, or to be unable to."""
        return self.decision is not None and self.decision.is_blocking

    @property
    def is_said_whole(self) -> bool:
        """Whether there is evidence that it is whole, besides the time without changes."""
        return self.decision is None or self.decision.evidence.is_statement

    @property
    def is_new_and_unknown(self) -> bool:
        """Whether it is in no set and has no evidence that it is whole, like a shard that is being written."""
        return self.taken is None and self.facts is not None and not self.is_said_whole

    @property
    def is_saved(self) -> bool:
        """Whether its writer has closed, renamed or marked it as finished; a log is never finished."""
        return self.is_said_whole and (self.decision is None or self.decision.evidence is not Evidence.LOG)

    @property
    def changes_alone(self) -> bool:
        """Whether it has changed repeatedly while no other file of the group has."""
        return self.num_alone >= _NUM_ALONE

    def is_busy_for_long(self, now_s: float, pace: Pace, *, outlasts_saves: bool) -> bool:
        """Whether it is busy for longer than it takes to be written.

        Args:
            outlasts_saves: whether saves were done beside it, so that its size shows how long writing takes.
        """
        busy_s = 0.0 if self.is_at_rest(now_s, pace) else now_s - self.busy_since_s
        size_bytes = self.facts.size_bytes if self.facts is not None else 0
        is_small = outlasts_saves and size_bytes <= _NOISE_BYTES_A_SECOND * busy_s
        return busy_s > (pace.small_patience_s if is_small else pace.patience_s)


@dataclass(frozen=True, kw_only=True)
class Sight:
    """A group; times are monotonic seconds."""

    content: GroupContent
    files: Mapping[str, FileSight] = field(default_factory=dict)  # with names that were removed a moment ago
    frame_since_s: float  # the first look that saw exactly these empty folders and links
    # time of the first look that saw other folders and links than the newest set has
    frame_dirty_since_s: float | None = None
    # time of the first look since which the group, except noise, has had changes and was not at rest
    unrest_since_s: float | None = None
    old_names: frozenset[str] = frozenset()  # names that existed when the group was last taken whole, with noise
    left_out: frozenset[str] = frozenset()  # names that existed when the set was made, but that the set lacks

    @property
    def dirty_since_s(self) -> float | None:
        """Time of the first look that saw a change that is not in the newest set; None without a change."""
        all_s = [self.frame_dirty_since_s, *(file.dirty_since_s for file in self.files.values())]
        return min((since_s for since_s in all_s if since_s is not None), default=None)

    def noise(self, now_s: float, pace: Pace) -> frozenset[str]:
        """Return the names of noise; see [Note: noise]."""
        return frozenset(
            path
            for path, file in self.files.items()
            if (file.is_replaced and file.changes_alone) or self._is_noise_by_time(path, file, now_s, pace)
        )

    def _is_noise_by_time(self, path: str, file: FileSight, now_s: float, pace: Pace) -> bool:
        outlasts_saves = self._outlasts_saves(path, file)
        if not outlasts_saves and not file.is_said_whole:
            return False
        return file.is_busy_for_long(now_s, pace, outlasts_saves=outlasts_saves)

    def _outlasts_saves(self, path: str, file: FileSight) -> bool:
        """Whether other files were saved while a file existed, or was busy."""
        if (path in self.old_names or file.taken is not None) and not file.is_unfinished:
            return True
        saved_s = [other.saved_s[0] for other in self.files.values() if len(other.saved_s) == _NUM_SAVES]
        return max(saved_s, default=-inf) > file.busy_since_s

    def is_dirty_but_for(self, noise: Collection[str]) -> bool:
        """Whether any change except noise is not in the newest set."""
        is_any = any(file.dirty_since_s is not None for path, file in self.files.items() if path not in noise)
        return is_any or self.frame_dirty_since_s is not None or bool(self.left_out.difference(noise))

    def is_at_rest_but_for(self, noise: Collection[str], now_s: float, pace: Pace) -> bool:
        """Whether all files except noise are at rest.

        Args:
            noise: paths that do not count.
            now_s: monotonic time of the last look.
            pace: defines how long a file must rest.
        """
        if now_s - self.frame_since_s < pace.settle_s:
            return False
        return all(file.is_at_rest(now_s, pace) for path, file in self.files.items() if path not in noise)


def follow(
    sights: Mapping[str, Sight],
    contents: Mapping[str, GroupContent],
    *,
    taken: Mapping[str, GroupContent],
    replaced: Collection[str] = (),
    decisions: Mapping[str, Decision] | None = None,
    now_s: float,
    pace: Pace,
) -> dict[str, Sight]:
    """Return the sights after another look.

    Args:
        sights: returned for the look before.
        contents: of each group at this look; empty for a group that does not exist any more.
        taken: files of each group in the newest set.
        replaced: names at which another file has replaced a file that was at rest.
        decisions: for the files that have changed since they were taken, whether they are whole.
    """
    found = {}
    for name in {*sights, *contents, *taken}:
        content, before = contents.get(name, NOTHING), sights.get(name)
        known = before.files if before is not None else {}
        files: dict[str, FileSight] = {}
        for path in {*content.files, *known, *taken.get(name, NOTHING).files}:
            file = _seen_again(known.get(path), content.files.get(path), (decisions or {}).get(path), now_s, pace)
            files[path] = (
                file if file.is_replaced == (path in replaced) else replace(file, is_replaced=path in replaced)
            )
        has_same_frame = before is not None and _frame(before.content) == _frame(content)
        found[name] = Sight(
            content=content,
            files=_counted(files, now_s, is_frame_new=before is not None and not has_same_frame),
            frame_since_s=before.frame_since_s if before is not None and has_same_frame else now_s,
            frame_dirty_since_s=before.frame_dirty_since_s if before is not None else None,
            unrest_since_s=before.unrest_since_s if before is not None else None,
            old_names=before.old_names if before is not None else frozenset(),
        )
    return {name: _with_unrest(sight, now_s, pace) for name, sight in compare(found, taken, now_s=now_s).items()}


def compare(
    sights: Mapping[str, Sight], taken: Mapping[str, GroupContent], *, whole: Collection[str] = (), now_s: float
) -> dict[str, Sight]:
    """Return the sights after files were taken, without another look.

    Args:
        whole: groups that were to be taken whole.
    """
    found = {}
    for name, sight in sights.items():
        known = taken.get(name, NOTHING)
        dirty_since_s = sight.frame_dirty_since_s
        if _frame(sight.content) == _frame(known):
            dirty_since_s = None
        elif dirty_since_s is None:
            dirty_since_s = now_s
        files = {path: _compared(file, known.files.get(path), now_s) for path, file in sight.files.items()}
        was_taken = name in whole and any(file.taken != sight.files[path].taken for path, file in files.items())
        names = frozenset(sight.content.files) if was_taken else sight.old_names
        new = replace(sight, files=files, frame_dirty_since_s=dirty_since_s, old_names=names, left_out=known.left_out)
        if new.content != NOTHING or known != NOTHING or files:
            found[name] = new
    return found


def _seen_again(
    before: FileSight | None, facts: FileFacts | None, decision: Decision | None, now_s: float, pace: Pace
) -> FileSight:
    if before is None:
        return FileSight(facts=facts, since_s=now_s, busy_since_s=now_s, decision=decision)
    before = replace(before, decision=decision) if before.decision != decision else before
    if before.facts != facts:
        was_at_rest = before.busy_since_s > before.since_s
        return replace(before, facts=facts, since_s=now_s, busy_since_s=now_s if was_at_rest else before.busy_since_s)
    if not before.is_at_rest(now_s, pace):
        return before
    saved_s, saved = before.saved_s, before.saved
    if before.facts is not None and before.dirty_since_s is None:
        saved = before.facts
    elif before.facts is not None and before.is_saved and (saved is None or not saved.is_written_as(before.facts)):
        saved_s, saved = (*saved_s, now_s)[-_NUM_SAVES:], before.facts
    return replace(before, busy_since_s=now_s, saved_s=saved_s, saved=saved)


def _counted(files: Mapping[str, FileSight], now_s: float, *, is_frame_new: bool) -> dict[str, FileSight]:
    """Count, for each file, the looks at which only this file has changed."""
    changed = [path for path, file in files.items() if file.since_s == now_s]
    if not changed and not is_frame_new:
        return dict(files)
    counted = {path: replace(file, num_alone=0) if file.num_alone else file for path, file in files.items()}
    if len(changed) == 1 and not is_frame_new:
        path = changed[0]
        counted[path] = replace(files[path], num_alone=files[path].num_alone + 1)
    return counted


def _compared(file: FileSight, taken: FileFacts | None, now_s: float) -> FileSight:
    since_s = file.dirty_since_s
    if file.facts == taken:
        since_s = None
    elif since_s is None:
        since_s = now_s
    elif file.taken != taken:
        since_s = max(since_s, file.since_s)  # an earlier state was taken, before the present one
    is_known = file.taken == taken and file.dirty_since_s == since_s
    return file if is_known else replace(file, taken=taken, dirty_since_s=since_s)


def _with_unrest(sight: Sight, now_s: float, pace: Pace) -> Sight:
    noise = sight.noise(now_s, pace)
    since_s: float | None = None
    if sight.is_dirty_but_for(noise) and not sight.is_at_rest_but_for(noise, now_s, pace):
        since_s = now_s if sight.unrest_since_s is None else sight.unrest_since_s
    # A removed name that is in no set is remembered until its absence is at rest: it may come back in between.
    files = {
        path: file
        for path, file in sight.files.items()
        if file.facts is not None or file.taken is not None or not file.is_at_rest(now_s, pace)
    }
    return replace(sight, files=files, unrest_since_s=since_s)


def _frame(content: GroupContent) -> tuple[frozenset[str], dict[str, str]]:
    return content.folders, dict(content.links)
