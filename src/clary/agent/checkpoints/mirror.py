"""The mirror of the checkpoint folder: rounds while the program runs, and the flush after its end.

Threads: one runs the rounds; one reports facts and detects stalls, so that a hanging store is reported too. Both are
daemons, and every wait for them has a deadline. No error reaches the supervisor.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from clary.agent.checkpoints.choosing import Choice
from clary.agent.checkpoints.evidence.observations import ProgramEnd
from clary.agent.checkpoints.evidence.witness import Judge
from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.grouping import group_of
from clary.agent.checkpoints.looking import Looks
from clary.agent.checkpoints.outcomes import Flushed, Listeners, named
from clary.agent.checkpoints.progress import Progress
from clary.agent.checkpoints.publishing import Publisher
from clary.agent.checkpoints.scanning import TooManyEntriesError, scan
from clary.agent.checkpoints.sights import Pace
from clary.agent.checkpoints.storing import SetWriter, missing_paths
from clary.agent.worker import Worker, never
from clary.base.clock import Clock
from clary.base.errors import ClaryError
from clary.contract.agent_protocol import CheckpointFacts
from clary.contract.checkpoint_evidence import Evidence

SETTLE_S = 0.5  # longer than a clock tick of the kernel: a later write gets another mtime
_SETTLE_MARGIN_S = 0.01
_REST_SHARE = 0.2  # share of `SETTLE_S` that a replaced file must rest: writers unlink a half-written file at once
_FLUSH_PAUSE_S = 0.5  # between tries of the last round
_MAX_COPY_TRIES = 3  # tries of the flush to update plain paths
_MAX_HOPELESS = 3  # tries of the last round that may fail by a refusal or an unreadable file
_BREAK_OFF_S = 1.0  # time for the thread of rounds to end after `abort`
_MAX_TICK_S = 1.0
_JOIN_S = 5.0

logger = logging.getLogger(__name__)


class Mirror(Worker):
    """Mirrors one folder.

    Args:
        judge: decides which files are whole.
        break_off: aborts every running request to the store, without waiting.
        interval_s: between two rounds.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        writer: SetWriter,
        publisher: Publisher,
        *,
        judge: Judge,
        progress: Progress,
        listeners: Listeners,
        break_off: Callable[[], None],
        interval_s: float,
        clock: Clock,
        settle_s: float = SETTLE_S,
    ) -> None:
        super().__init__("checkpoint-mirror", failure="the mirror of checkpoints has ended", first_pause_s=interval_s)
        self._folder = folder
        self._writer = writer
        self._publisher = publisher
        self._progress = progress
        self._listeners = listeners
        self._break_off = break_off
        self._interval_s = interval_s
        self._pace = Pace(settle_s=min(settle_s, interval_s), interval_s=interval_s)
        self._looks = Looks(folder, judge, pace=self._pace, min_rest_s=_REST_SHARE * self._pace.settle_s)
        self._clock = clock
        self._is_done = False  # the thread of rounds has finished its work
        self._is_last_stored = False  # or all tries of the last round have failed
        self._num_copy_tries = 0  # tries of the flush
        self._is_stalled = False  # whether the last report said so
        self._deadline_s: float | None = None  # monotonic deadline of the flush
        self._end = ProgramEnd.FINISHED  # how the program has ended; known at the flush
        self._torn: tuple[str, ...] = ()  # files that the flush leaves out
        self._noted: set[str] = set()
        self._told: CheckpointFacts | None = None
        self._num_hopeless = 0  # permanent errors, which another try will hardly cure
        self._is_store_away = False  # whether the last round failed with a retryable error
        self._is_behind = True  # plain paths may lack files of a set
        self._watch = Worker("checkpoint-watch", failure="checkpoints are not watched", act=self._watch_progress)

    def start(self) -> None:
        """Start both threads."""
        super().start()
        self._watch.start()

    def store_last(self, limit_s: float, *, end: ProgramEnd = ProgramEnd.FINISHED) -> Flushed:
        """Store the remaining changes within `limit_s` after the program has ended; end the mirror."""
        with self._changed:
            self._end = end
            self._set_deadline(limit_s)
            self.stop()
            while not self._is_done and not self.is_aborted:
                assert self._deadline_s is not None
                left_s = self._deadline_s - self._clock.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
        self.abort()
        self.join(_BREAK_OFF_S)
        return self._outcome()

    def shorten(self, limit_s: float) -> None:
        """Move the deadline of the flush to `limit_s` from now, if that is earlier."""
        with self._changed:
            self._set_deadline(limit_s)
            self._changed.notify_all()

    def abort(self) -> None:
        """Abort a running round and end, without waiting; a second call does nothing."""
        with self._changed:
            if self.is_aborted:
                return
            super().abort()
        self._watch.flush()
        self._break_off()

    def join(self, timeout_s: float = _JOIN_S, *, is_vain: Callable[[], bool] = never) -> bool:
        """Wait for both threads; return whether they have ended."""
        deadline_s = time.monotonic() + timeout_s
        has_ended = super().join(timeout_s, is_vain=is_vain)
        return self._watch.join(max(0.0, deadline_s - time.monotonic()), is_vain=is_vain) and has_ended

    def _set_deadline(self, limit_s: float) -> None:
        deadline_s = self._clock.monotonic() + limit_s
        self._deadline_s = deadline_s if self._deadline_s is None else min(self._deadline_s, deadline_s)

    def _round(self) -> float | None:
        if not self.is_stopping:
            self._try(self._usual_round)
            if not self.is_stopping and not self.is_aborted:
                self._publish()
            self._num_hopeless = 0
            return self._interval_s
        if not self._is_last_stored:
            self._is_last_stored = self._try(self._last_round) or self._num_hopeless >= _MAX_HOPELESS
            if not self._is_last_stored:
                return _FLUSH_PAUSE_S
        self._num_copy_tries += 1
        if self.is_aborted or self._publish() or self._num_copy_tries >= _MAX_COPY_TRIES:
            return None
        return _FLUSH_PAUSE_S

    def _on_end(self) -> None:
        with self._changed:
            self._is_done = True
            self._changed.notify_all()
        self._watch.flush()

    def _try(self, act: Callable[[], None]) -> bool:
        """Run a round; return whether it succeeded. A failure is reported, and the next round tries again."""
        before = self._writer.last
        try:
            act()
        except Exception as error:  # error boundary: an error of the mirror must not end the program
            if not isinstance(error, ClaryError | OSError):
                logger.error("unexpected error in the mirror of checkpoints", exc_info=error)
            if self.is_aborted:
                return False
            self._is_store_away = isinstance(error, ClaryError) and error.retryable
            self._num_hopeless += not self._is_store_away
            logger.warning("checkpoints: %s", error)
            if isinstance(error, TooManyEntriesError):
                self._note_once(f"checkpoints: {error}")
            self._progress.begins()
            self._progress.failed(str(error))
            if self._writer.last is not before:
                self._progress.committed(self._writer.last)
            return False
        self._is_store_away = False
        self._progress.went_well(self._writer.last, is_new=self._writer.last is not before)
        return True

    def _usual_round(self) -> None:
        try:
            choice = self._looks.first(self._writer.taken, now_s=self._clock.monotonic())
            self._saw()
            if choice.waiting or self._looks.held:
                # A second look shows which files are at rest, so that they need not wait for the next round.
                self.pause(self._pace.settle_s + _SETTLE_MARGIN_S)
                if self.is_stopping or self.is_aborted:
                    return
                choice = self._looks.second(self._writer.taken, now_s=self._clock.monotonic())
                self._saw()
            self._note_unrest(choice)
            self._store(choice)
        finally:
            self._looks.forget()

    def _last_round(self) -> None:
        choice = self._looks.last(self._writer.taken, now_s=self._clock.monotonic(), end=self._end)
        self._saw()
        self._leave_out_torn(choice)
        self._store(choice)

    def _leave_out_torn(self, choice: Choice) -> None:
        """Report the files that the last set lacks because the program ended before they were complete."""
        files = {path: file for sight in self._looks.sights.values() for path, file in sight.files.items()}
        torn = {path for path, file in files.items() if file.is_unfinished and file.facts is not None}
        self._torn = tuple(sorted(torn | {path for path in files if group_of(path) in choice.waiting}))
        for name, decisions in choice.unfinished.items():
            # Report the file with the clearest reason: some files wait only because some process has ended.
            path, decision = min(decisions.items(), key=lambda item: (item[1].evidence is Evidence.RESTED, item[0]))
            newest = f"set {self._writer.last.number}" if self._writer.last is not None else "no set"
            self._note_once(
                f"checkpoints: {_in_words(name)} is left as it was in {newest}: {path!a} is not whole, "
                f"{decision.reason}; half a checkpoint is never stored over a whole one"
            )

    def _saw(self) -> None:
        """Report the results of a look."""
        self._progress.saw(self._looks.sights, self._writer.taken)
        for why, paths in self._looks.snapshot.left_out.items():
            self._note_once(f"checkpoints: {why}: {named(paths)}", key=why)

    def _note_unrest(self, choice: Choice) -> None:
        """Report once per group: files not waited for, a file that delays the group, files stored one by one."""
        for name, paths in choice.noise.items():
            self._note_once(
                f"checkpoints: {_in_words(name)} holds files that are written to without a pause "
                f"({named(sorted(paths))}): the others do not wait for them, and each of them is stored once it was "
                f"left alone for {self._pace.settle_s:g} s or replaced by another file; of sets without them, unless "
                "they are logs by their names, it is not known that they are whole",
                key=f"noise in {name}",
            )
        for name, decisions in choice.unfinished.items():
            since_s = self._looks.sights[name].unrest_since_s
            has_waited = since_s is not None and self._clock.monotonic() - since_s > self._pace.patience_s
            for path, decision in sorted(decisions.items())[:1]:
                if has_waited or decision.is_torn:
                    self._note_once(
                        f"checkpoints: nothing new of {_in_words(name)} is stored, since {path!a} is not whole: "
                        f"{decision.reason}; files that are kept open belong into a folder of their own",
                        key=f"unfinished in {name}",
                    )
        for name in choice.single:
            self._note_once(
                f"checkpoints: {_in_words(name)} is written to without a pause of {self._pace.settle_s:g} s, so its "
                "files are stored one by one and may not belong together",
                key=f"unrest of {name}",
            )

    def _store(self, choice: Choice) -> None:
        if not choice.is_empty or self._writer.is_uncertain:
            self._progress.begins()
            self._is_behind = True
            self._writer.take(self._looks.snapshot, choice, held=self._looks.held)
            self._looks.compare(self._writer.taken, choice, now_s=self._clock.monotonic())
            self._progress.saw(self._looks.sights, self._writer.taken)

    def _publish(self) -> bool:
        """Update the plain paths; return whether they are current. A failure here does not fail the round."""
        if self._is_store_away:
            return False
        try:
            is_done = self._publisher.publish(
                self._writer.last, is_behind=self._is_behind, is_given_up=lambda: self.is_aborted
            )
        except Exception:  # error boundary: an error of the mirror must not end the program
            logger.exception("unexpected error in the copies of checkpoints")
            is_done = False
        self._is_behind = not is_done
        return is_done

    def _watch_progress(self) -> float | None:
        """Report changed facts and stalls."""
        is_over = self._is_done or self.is_aborted
        facts = self._publish_facts()
        if (facts.stalled_since is not None) != self._is_stalled and not is_over:
            self._is_stalled = not self._is_stalled
            self._say_stall(facts, is_over=not self._is_stalled)
        return None if is_over else min(_MAX_TICK_S, self._interval_s / 2)

    def _say_stall(self, facts: CheckpointFacts, *, is_over: bool) -> None:
        if is_over:
            self._listeners.say(f"checkpoints are stored again; the newest set is {facts.set_number or 'none'}")
            return
        why = facts.error or "the object store has not answered yet"
        sentence = (
            f"checkpoints are stalled: {facts.dirty_files} files, {facts.dirty_bytes} bytes, are not stored; the "
            f"newest set is {facts.set_number or 'none'}: {why}"
        )
        self._note_once(sentence)

    def _publish_facts(self) -> CheckpointFacts:
        facts = self._progress.facts
        if facts != self._told:
            self._told = facts
            self._listeners.tell(facts)
        return facts

    def _outcome(self) -> Flushed:
        """Determine the files that the sets lack, and report the final facts."""
        error, is_over_limit = "", False
        try:
            snapshot = scan(self._folder)
            missing = missing_paths(snapshot, self._writer.taken)
            missed = [path for path in missing if path not in self._torn]
            size_bytes = sum(snapshot.files[path].size_bytes for path in missed if path in snapshot.files)
        except TooManyEntriesError as caught:
            missed, size_bytes, error, is_over_limit = ["."], 0, str(caught), True
        except OSError as caught:
            missed, size_bytes, error = ["."], 0, f"the folder cannot be read: {caught}"
        self._progress.missed(tuple(missed), torn=self._torn, size_bytes=size_bytes)
        facts = self._publish_facts()
        if missed and not error:
            error = facts.error or "the object store did not take them in time"
        return Flushed(missed=tuple(missed), error=error, torn=self._torn, is_over_limit=is_over_limit)

    def _note_once(self, sentence: str, *, key: str = "") -> None:
        """Note a sentence once per key; the default key is the sentence."""
        if (key or sentence) not in self._noted:
            self._noted.add(key or sentence)
            self._listeners.note(sentence)


def _in_words(group: str) -> str:
    return f"{group}/" if group else "the folder itself"
