"""State of the checkpoint folder over successive scans ("looks"): the changes, their times and kinds. Pure.

Each round has up to two looks, `settle_s` apart. A file is at rest if two looks at least `settle_s` apart saw it in the
same state; until then it counts as busy.

[Note: noise] Some files are never at rest: a log, a counter, a checkpoint of every step. The other files of the group
do not wait for them; otherwise a folder with a log in it would be in no set before the program ends. But a shard that
is being written is busy too, and a set without it would be half a checkpoint. Time and size distinguish noise from
shards. These files are noise:

- a file that is always replaced before a look can see it at rest, if it has changed repeatedly and no other file of the
  group has. Each version was whole, so no save is unfinished, and the file does not depend on other files;
- a file that is busy for long and still small, while other saves are completed: its name existed when the group was
  taken, or another file of the group was saved twice meanwhile. A new name alone may be a shard that is written slowly,
  whatever its size;
- a file of any size that is busy for very long, if its name existed before or its writer closes it each time.

Every other busy file, above all one with a new name, is treated as an unfinished save: its group waits without limit. A
file that is known to be unfinished (a process has it open, or died while writing it) is noise only once another file
was saved twice meanwhile. A set names the files that it lacks, except logs (`choosing`), because it may then be
incomplete.
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
_NUM_SAVES = 2  # saves of another file meanwhile; a single save may be another shard of the same checkpoint
_NUM_ALONE = 3  # three consecutive looks do not all fall between two files of one save


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The interval between rounds of looks, and how long to wait for files to come to rest."""

    settle_s: float  # a file that is unchanged for this time is at rest
    interval_s: float  # between two rounds

    @property
    def patience_s(self) -> float:
        """Seconds until a busy file is noise, and until a busy group's files are taken one by one."""
        return _PATIENCE_INTERVALS * self.interval_s

    @property
    def small_patience_s(self) -> float:
        """Seconds until a busy file is noise, if it is small for that time."""
        return min(self.patience_s, max(_NOISE_S, _NOISE_INTERVALS * self.interval_s))


@dataclass(frozen=True, kw_only=True)
class FileSight:
    """State of one name in the folder; times are monotonic seconds."""

    facts: FileFacts | None  # None if the file no longer exists
    since_s: float  # time of the first look that saw this state
    busy_since_s: float  # time of the first look that saw it busy, or of the last look that saw it at rest
    num_alone: int = 0  # looks at which only this file had changed, since another file of the group last changed
    is_replaced: bool = False  # whether it was whole at the previous look, and another file has since replaced it
    taken: FileFacts | None = None  # its version in the newest set
    dirty_since_s: float | None = None  # time of the first look that saw another version than `taken`
    saved_s: tuple[float, ...] = ()  # times of the last two looks that saw a new whole version
    saved: FileFacts | None = None  # its state at the last of these looks
    decision: Decision | None = None  # the decision whether it is whole; None if it is unchanged since it was taken

    def is_at_rest(self, now_s: float, pace: Pace) -> bool:
        """Whether the look at `now_s` saw the file at rest, and the file is judged to be whole."""
        return now_s - self.since_s >= pace.settle_s and (self.decision is None or self.decision.is_whole)

    @property
    def is_unfinished(self) -> bool:
        """Whether the file is known to be unfinished, possibly for ever."""
        return self.decision is not None and self.decision.is_blocking

    @property
    def is_said_whole(self) -> bool:
        """Whether there is evidence, other than rest, that the file is whole."""
        return self.decision is None or self.decision.evidence.is_statement

    @property
    def is_new_and_unknown(self) -> bool:
        """Whether the file is in no set and has no evidence that it is whole, like a shard that is being written."""
        return self.taken is None and self.facts is not None and not self.is_said_whole

    @property
    def is_saved(self) -> bool:
        """Whether the writer has closed, renamed or marked the file as finished; a log is never finished."""
        return self.is_said_whole and (self.decision is None or self.decision.evidence is not Evidence.LOG)

    @property
    def changes_alone(self) -> bool:
        """Whether the file has changed repeatedly while no other file of the group has."""
        return self.num_alone >= _NUM_ALONE

    def is_busy_for_long(self, now_s: float, pace: Pace, *, outlasts_saves: bool) -> bool:
        """Whether the file has been busy for longer than its writing can take.

        Args:
            outlasts_saves: whether other files were saved meanwhile, so that a small size shows that the file is not a
                slow save.
        """
        busy_s = 0.0 if self.is_at_rest(now_s, pace) else now_s - self.busy_since_s
        size_bytes = self.facts.size_bytes if self.facts is not None else 0
        is_small = outlasts_saves and size_bytes <= _NOISE_BYTES_A_SECOND * busy_s
        return busy_s > (pace.small_patience_s if is_small else pace.patience_s)


@dataclass(frozen=True, kw_only=True)
class Sight:
    """State of a group; times are monotonic seconds."""

    content: GroupContent
    files: Mapping[str, FileSight] = field(default_factory=dict)  # by path; includes recently removed files
    frame_since_s: float  # time of the first look that saw exactly these empty folders and links
    # time of the first look at which folders and links differed from the newest set
    frame_dirty_since_s: float | None = None
    # time of the look since which the group, except noise, has had changes and was not at rest
    unrest_since_s: float | None = None
    old_names: frozenset[str] = frozenset()  # names (also noise) at the time when the group was last taken as a unit
    left_out: frozenset[str] = frozenset()  # names that existed when the set was made but are not in it

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
        """Whether other files were saved while the file at `path` existed, or while it was busy."""
        if (path in self.old_names or file.taken is not None) and not file.is_unfinished:
            return True
        saved_s = [other.saved_s[0] for other in self.files.values() if len(other.saved_s) == _NUM_SAVES]
        return max(saved_s, default=-inf) > file.busy_since_s

    def is_dirty_but_for(self, noise: Collection[str]) -> bool:
        """Whether the newest set lacks a change other than changes of the noise files in `noise`."""
        is_any = any(file.dirty_since_s is not None for path, file in self.files.items() if path not in noise)
        return is_any or self.frame_dirty_since_s is not None or bool(self.left_out.difference(noise))

    def is_at_rest_but_for(self, noise: Collection[str], now_s: float, pace: Pace) -> bool:
        """Whether all files except the given noise are at rest.

        Args:
            noise: paths to ignore.
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
        sights: result of the previous look.
        contents: group -> its content at this look; empty for a group that no longer exists.
        taken: group -> its content in the newest set.
        replaced: names at which another file has replaced a file that was at rest.
        decisions: path -> decision, for files that have changed since they were taken.
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
        whole: groups that were chosen to be taken as units.
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
    # A removed name that is in no set is kept until it has been absent for the rest time: the file may reappear.
    files = {
        path: file
        for path, file in sight.files.items()
        if file.facts is not None or file.taken is not None or not file.is_at_rest(now_s, pace)
    }
    return replace(sight, files=files, unrest_since_s=since_s)


def _frame(content: GroupContent) -> tuple[frozenset[str], dict[str, str]]:
    return content.folders, dict(content.links)
