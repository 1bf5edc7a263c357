"""Successive looks at the checkpoint folder, and the choices that follow from them.

Where: the mirror looks once per round, and a second time if files are busy; between both looks it keeps files open that
may be replaced meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from clary.agent.checkpoints.choosing import Choice, choose, to_hold
from clary.agent.checkpoints.evidence.observations import Decision, ProgramEnd
from clary.agent.checkpoints.evidence.witness import Judge
from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.grouping import GroupContent, contents_of
from clary.agent.checkpoints.held_files import HeldFiles
from clary.agent.checkpoints.scanning import Snapshot, scan
from clary.agent.checkpoints.sights import Pace, Sight, compare, follow


class Looks:
    """The looks at one folder; used by one thread. Call `forget` after each round to close the held files.

    Args:
        judge: decides which files are whole.
        min_rest_s: time for which a replaced file must have been unchanged before its replacement.
    """

    def __init__(self, folder: CheckpointFolder, judge: Judge, *, pace: Pace, min_rest_s: float) -> None:
        self._folder = folder
        self._judge = judge
        self._pace = pace
        self._held = HeldFiles(folder, min_rest_s=min_rest_s)
        self.snapshot = Snapshot()
        self.sights: dict[str, Sight] = {}
        self._decisions: Mapping[str, Decision] = {}  # path -> decision of the most recent look

    @property
    def held(self) -> Mapping[str, int]:
        """Descriptors of the files that are kept open, by path."""
        return self._held.descriptors()

    def first(self, taken: Mapping[str, GroupContent], *, now_s: float) -> Choice:
        """Look for the first time in a round, and hold files open that may be replaced. Raises: OSError."""
        self._look(taken, (), now_s)
        self._held.hold(to_hold(self.sights, now_s=now_s, pace=self._pace))
        return choose(self.sights, now_s=now_s, pace=self._pace)

    def second(self, taken: Mapping[str, GroupContent], *, now_s: float) -> Choice:
        """Look again to see which files are at rest; close held files that are not chosen. Raises: OSError."""
        # Use the decisions of the first look: a replaced file has no name now, but a writer may still have it open.
        before = self._decisions
        replaced = {path: facts for path, facts in self._held.replaced().items() if _is_whole(before.get(path))}
        self._look(taken, replaced.keys(), now_s)
        choice = choose(self.sights, replaced=replaced, now_s=now_s, pace=self._pace)
        choice = replace(choice, decisions={**choice.decisions, **{path: before[path] for path in choice.replaced}})
        self._held.keep_only(choice.replaced)  # an upload may take long, and open files occupy disk space
        return choice

    def last(self, taken: Mapping[str, GroupContent], *, now_s: float, end: ProgramEnd = ProgramEnd.FINISHED) -> Choice:
        """Look after the end of all writes: every whole file counts as at rest.

        Args:
            taken: group -> its content in the newest set.
            now_s: monotonic time of the look.
            end: how the program has ended.
        Raises: OSError.
        """
        self._look(taken, (), now_s, end)
        return choose(self.sights, now_s=now_s, pace=Pace(settle_s=0.0, interval_s=self._pace.interval_s))

    def compare(self, taken: Mapping[str, GroupContent], choice: Choice, *, now_s: float) -> None:
        """Update `sights` after the chosen files were taken.

        Args:
            taken: group -> its content in the newest set, which now has the chosen files.
            choice: the files that were chosen.
            now_s: monotonic time.
        """
        self.sights = compare(self.sights, taken, whole=choice.whole, now_s=now_s)

    def forget(self) -> None:
        """Close the files that are kept open."""
        self._held.release()

    def _look(
        self,
        taken: Mapping[str, GroupContent],
        replaced: Collection[str],
        now_s: float,
        end: ProgramEnd | None = None,
    ) -> None:
        self.snapshot = scan(self._folder)
        known = {path: facts for content in taken.values() for path, facts in content.files.items()}
        changed = [path for path, facts in self.snapshot.files.items() if known.get(path) != facts]
        self._decisions = self._judge.decide(self.snapshot, changed, end=end)
        self.sights = follow(
            self.sights,
            contents_of(self.snapshot),
            taken=taken,
            replaced=replaced,
            decisions=self._decisions,
            now_s=now_s,
            pace=self._pace,
        )


def _is_whole(decision: Decision | None) -> bool:
    return decision is not None and decision.is_whole
