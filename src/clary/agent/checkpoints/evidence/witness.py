"""Watch of one checkpoint folder and its program: decides by evidence whether files are whole.

Where: it starts just before the program; each look (scan of the folder) of the mirror queries it about changed files.
`judging` has the rules of its decisions.

Threads: the witness's thread records events between looks, above all the processes that are alive after a close. The
mirror's thread calls `decide` at each look, and the supervisor's calls `look_now` before it signals the program. One
lock guards the state that all of them use, and is held only while states of files and processes are read.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from clary.agent.checkpoints.evidence.folder_events import FolderEvents, History
from clary.agent.checkpoints.evidence.judging import judge
from clary.agent.checkpoints.evidence.markers import MAX_POINTER_BYTES, marked
from clary.agent.checkpoints.evidence.observations import Close, Death, Decision, Hold, Observation, ProgramEnd
from clary.agent.checkpoints.evidence.open_files import (
    FileId,
    Holder,
    file_id,
    find_holders,
    hold_of,
    is_shared_with_machines,
    probe,
)
from clary.agent.checkpoints.evidence.processes import ProgramProcesses
from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.log_names import is_log
from clary.agent.checkpoints.scanning import FileFacts, Snapshot, facts_of, scan
from clary.agent.worker import Worker
from clary.base.clock import Clock
from clary.base.readiness import readable

_TICK_S = 2.0  # between two checks of the living processes, without events
_PAUSE_S = 0.02  # wait after an event, so that many events cost one check
# pause between two searches as a multiple of a search's duration: searches use at most a twentieth of a core
_NUM_PAUSES = 20
_FIND_S = 0.25  # minimum time between two reads of the machine's process list
_FILE_CLOCK_S = 0.01  # largest lag of file times: a tick of the kernel's clock
_FULL_BYTES = 1 << 20  # a disk with less free space counts as full
_JOIN_S = 5.0

logger = logging.getLogger(__name__)


class Judge(Protocol):
    """Decides which files are whole."""

    def decide(
        self, snapshot: Snapshot, paths: Collection[str], *, end: ProgramEnd | None = None
    ) -> Mapping[str, Decision]:
        """Return path -> decision, for files of a snapshot taken just before.

        Args:
            paths: files whose state differs from the newest set.
            end: how the program has ended; None while it runs.
        """


@dataclass(frozen=True, kw_only=True)
class _Trail:
    """Observations of a name by earlier looks."""

    facts: FileFacts
    since_s: float  # the first look that saw this state
    before_s: float  # the look before that look; -inf if the file existed when the witness began
    begun_s: float  # the last look that found it whole, or the look before the one that first saw it
    held_s: float | None = None  # the last look that found it open in a process
    free_s: float | None = None  # the first look since then that found it closed
    writers: frozenset[int] = frozenset()  # pids of the writers of this inode
    longest_pause_s: float = 0.0  # between states seen at looks, by the file's own times


@dataclass(frozen=True, kw_only=True)
class _Probed:
    kernel_says: Hold
    file: FileId | None  # None: the file is missing or has changed


class Witness(Worker):
    """Watches one folder.

    Args:
        note: called once for each limit that leaves folders unwatched.
        least_rest_s: minimum rest of a file without other evidence that it is whole.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        *,
        clock: Clock,
        note: Callable[[str], None],
        least_rest_s: float,
    ) -> None:
        # If this thread fails, looks continue, but events between them are missed.
        super().__init__("checkpoint-witness", failure="unexpected error in the witness of checkpoints")
        self._folder = folder
        self._clock = clock
        self._least_rest_s = least_rest_s
        self._events = FolderEvents(folder, is_free=self._is_free, clock=clock, note=note)
        self._processes = ProgramProcesses(clock)
        self._lock = threading.Lock()
        self._trails: dict[str, _Trail] = {}
        self._shared: dict[int, bool] = {}  # device -> whether other machines may write to it
        self._looked_s = -inf
        self._find_again_s = -inf  # earliest time of the next search for new processes
        self._full_s = -inf  # when the disk was last seen full
        self._is_early = self._is_closed = False
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def start(self) -> None:
        """Start to watch, before the program starts; existing files have no history. Does not raise."""
        with self._lock:
            self._events.start()
            try:
                for path, facts in scan(self._folder).files.items():
                    self._trails[path] = _Trail(
                        facts=facts, since_s=self._clock.monotonic(), before_s=-inf, begun_s=-inf
                    )
            except OSError as error:
                logger.warning("checkpoints: %s", error)  # the first look reports it to the user
            self._looked_s = self._clock.monotonic()
        super().start()

    def follow(self, first_pid: int | None) -> None:
        """Start to watch the program's processes.

        Args:
            first_pid: pid of the program's first process on this machine; None: ends of processes are no evidence for
                files.
        """
        with self._lock:
            self._processes.first_pid = first_pid
            self._look_for_processes()

    def look_now(self, limit_s: float) -> bool:
        """Record the closes so far, and the processes that live after them; call it before the program is signalled.

        The thread's own look may come too late on a busy machine: once a writer is dead, its last closes no longer
        count. Return whether the look was over after `limit_s`; a later end of it does no harm. Does not raise.
        """
        is_over = threading.Event()

        def look() -> None:
            try:
                with self._lock:
                    if not self._is_closed:
                        self._events.read()
                        self._processes.find()
                        self._processes.check()
            except Exception:  # boundary: background threads; a stop goes on without the look
                logger.exception("the look at the checkpoint folder before a signal has failed")
            is_over.set()

        # A thread of its own: a file system that hangs must not stop the caller, nor may the rest between two rounds.
        threading.Thread(target=look, name="checkpoint-last-look", daemon=True).start()
        return is_over.wait(limit_s)

    def close(self, timeout_s: float = _JOIN_S) -> bool:
        """End the watch; return whether all has ended within about twice the limit. A second call does nothing."""
        if self._is_closed:
            return not self.is_running
        self._is_closed = True
        self.abort()
        os.write(self._wake_writer, b"x")
        has_ended = self.join(timeout_s)
        if not self._lock.acquire(timeout=timeout_s):
            logger.error("the witness of checkpoints did not end in time; it ends with the process")
            return False
        try:
            self._events.close()
            self._processes.close()
        finally:
            self._lock.release()
        os.close(self._wake_writer)
        os.close(self._wake_reader)
        return has_ended

    def decide(
        self, snapshot: Snapshot, paths: Collection[str], *, end: ProgramEnd | None = None
    ) -> Mapping[str, Decision]:
        """Return path -> decision, and record this look.

        Args: as `Judge.decide`.
        """
        with self._lock:
            before_s, now_s = self._looked_s, self._clock.monotonic()
            self._look_for_room(now_s)
            self._events.read()
            probed = {path: self._probe(path, snapshot.files[path]) for path in paths}
            held = {p.file for p in probed.values() if p.file is not None and p.kernel_says is not Hold.FREE}
            # After the probes: if a process is alive now, a file that the probes found free was not closed by its end.
            if paths:
                self._processes.find()
                self._processes.check()
            holders = find_holders(held, self._processes.pids)
            deaths = self._deaths(end, before_s)
            seen = {
                path: self._observe(path, snapshot.files[path], probed[path], holders, now_s=now_s, before_s=before_s)
                for path in paths
            }
            decisions = {path: self._judge(seen[path], deaths, end) for path in paths}
            wanting = [path for path, decision in decisions.items() if not decision.evidence.is_statement]
            if wanting:
                markers = marked(
                    snapshot.files,
                    is_whole=lambda path: decisions[path].is_whole if path in decisions else True,
                    text_of=self._text_of,
                    came_last=lambda marker, path: self._came_last(marker, path, snapshot),
                )
                for path in wanting:
                    if path in markers:
                        mark = markers[path]
                        marked_file = replace(seen[path], marker=mark.path, is_marker_seen=mark.is_seen)
                        decisions[path] = self._judge(marked_file, deaths, end)
            self._trails = {path: trail for path, trail in self._trails.items() if path in snapshot.files}
            for path, decision in decisions.items():
                if decision.is_whole:
                    self._trails[path] = replace(self._trails[path], begun_s=now_s)
            self._looked_s = now_s
            return decisions

    def _judge(self, seen: Observation, deaths: list[Death], end: ProgramEnd | None) -> Decision:
        return judge(seen, deaths, now_s=self._clock.monotonic(), least_rest_s=self._least_rest_s, end=end)

    def _probe(self, path: str, facts: FileFacts) -> _Probed:
        """Probe whether a process has a file open for writing."""
        try:
            descriptor = self._folder.open_file(path)
        except OSError:
            return _Probed(kernel_says=Hold.UNKNOWN, file=None)
        try:
            if facts_of(os.fstat(descriptor)) != facts:
                return _Probed(kernel_says=Hold.HELD, file=None)  # the file has just changed: a process is writing it
            file = file_id(descriptor)
            return _Probed(kernel_says=self._hold(descriptor, file), file=file)
        except OSError:
            return _Probed(kernel_says=Hold.UNKNOWN, file=None)
        finally:
            os.close(descriptor)

    def _is_free(self, descriptor: int) -> bool:
        return self._hold(descriptor, file_id(descriptor)) is Hold.FREE

    def _hold(self, descriptor: int, file: FileId) -> Hold:
        """Probe an open file; FREE becomes UNKNOWN if other machines may have it open."""
        found = probe(descriptor)
        return Hold.UNKNOWN if found is Hold.FREE and self._is_shared(file.device) else found

    def _is_shared(self, device: int) -> bool:
        if device not in self._shared:
            self._shared[device] = is_shared_with_machines(device)
        return self._shared[device]

    def _observe(
        self,
        path: str,
        facts: FileFacts,
        probed: _Probed,
        all_holders: Mapping[FileId, list[Holder]],
        *,
        now_s: float,
        before_s: float,
    ) -> Observation:
        holders = all_holders.get(probed.file, []) if probed.file is not None else []
        hold = hold_of(probed.kernel_says, holders)
        trail = self._follow(path, facts, now_s=now_s, before_s=before_s)
        if hold is Hold.HELD:
            writers = trail.writers | {holder.pid for holder in holders}
            trail = replace(trail, held_s=now_s, free_s=None, writers=writers)
        elif hold is Hold.FREE and trail.free_s is None:
            trail = replace(trail, free_s=now_s)
        self._trails[path] = trail
        history = self._events.history(path)
        is_told = history is not None and history.says_of(facts)
        longest_pause_s = max(trail.longest_pause_s, self._events.longest_pause_s)
        if history is not None:
            longest_pause_s = max(longest_pause_s, history.longest_pause_s)
        return Observation(
            hold=hold,
            is_log=is_log(path),
            since_s=trail.since_s,
            holders=tuple(holder.words for holder in holders),
            writers=trail.writers,
            is_named=history is not None and is_told and history.is_named,
            close=self._close_of(trail, history if is_told else None, written_s=self._written_s(facts)),
            was_disk_full=self._full_s > -inf and trail.begun_s <= self._full_s <= trail.since_s,
            longest_pause_s=longest_pause_s,
        )

    def _follow(self, path: str, facts: FileFacts, *, now_s: float, before_s: float) -> _Trail:
        known = self._trails.get(path)
        if known is None:
            return _Trail(facts=facts, since_s=now_s, before_s=before_s, begun_s=before_s)
        if known.facts == facts:
            return known
        is_same_file = known.facts.inode == facts.inode
        pause_s = max(0.0, (facts.modified_ns - known.facts.modified_ns) / 1e9) if is_same_file else 0.0
        pause_s = min(pause_s, now_s - known.before_s)  # bounds the effect of a changed system clock
        was_held = known.held_s is not None and is_same_file
        return _Trail(
            facts=facts,
            since_s=now_s,
            before_s=before_s,
            begun_s=known.begun_s if is_same_file else before_s,
            writers=known.writers if is_same_file else frozenset(),
            longest_pause_s=max(known.longest_pause_s, pause_s) if was_held else 0.0,
        )

    @staticmethod
    def _close_of(trail: _Trail, history: History | None, *, written_s: float) -> Close | None:
        """Return the close after the file's last write; None if no close was observed."""
        closed = history.close if history is not None else None
        if closed is not None:
            after_s, before_s = closed.after_s, closed.before_s
        elif trail.free_s is not None:
            # Every process that wrote the file during the watch has closed it.
            after_s, before_s = trail.held_s if trail.held_s is not None else trail.before_s, trail.free_s
        else:
            return None
        if closed is None and after_s == -inf:
            return None  # the file existed before the watch began: its writer is unknown
        return Close(after_s=written_s if after_s < written_s < before_s else after_s, before_s=before_s)

    def _came_last(self, marker: str, path: str, snapshot: Snapshot) -> bool | None:
        """Whether events or looks show that a marker came after a file; None if the same look first saw both."""
        told = []
        for name in (marker, path):
            history = self._events.history(name)
            says = history is not None and history.says_of(snapshot.files[name])
            told.append(history.told if history is not None and says else None)
        if told[0] is not None and told[1] is not None and told[0] != told[1]:
            return told[0] > told[1]
        # Without events (new folders, or too many folders): a look between the changes of the two files may show the
        # order.
        last, first = self._trails.get(marker), self._trails.get(path)
        if last is None or first is None or last.facts != snapshot.files[marker] or first.facts != snapshot.files[path]:
            return False
        if last.before_s > first.since_s:
            return True
        return False if first.before_s >= last.since_s else None

    def _written_s(self, facts: FileFacts) -> float:
        """Return a moment before the last write to a file, by its times; earlier if a time was set back."""
        offset_s = self._clock.now().timestamp() - self._clock.monotonic()
        return min(facts.modified_ns, facts.changed_ns) / 1e9 - offset_s - _FILE_CLOCK_S

    def _deaths(self, end: ProgramEnd | None, before_s: float) -> list[Death]:
        deaths = list(self._processes.deaths)
        if end is ProgramEnd.BROKEN and not deaths:
            alive_s = max(self._processes.newest_s, before_s)
            deaths.append(
                Death(pid=0, name="the program", alive_s=alive_s, noticed_s=self._clock.monotonic(), wait_status=None)
            )
        return deaths

    def _text_of(self, path: str) -> str:
        try:
            descriptor = self._folder.open_file(path)
        except OSError:
            return ""
        try:
            data = os.read(descriptor, MAX_POINTER_BYTES + 1)
        except OSError:
            return ""
        finally:
            os.close(descriptor)
        return data.decode(errors="replace") if len(data) <= MAX_POINTER_BYTES else ""

    def _look_for_room(self, now_s: float) -> None:
        try:
            room = os.statvfs(self._folder.path)
        except OSError:
            return
        if room.f_bavail * room.f_frsize < _FULL_BYTES:
            self._full_s = now_s

    def _look_for_processes(self) -> bool:
        """Check the known processes and search for new processes; return whether it was too early for the search."""
        self._processes.check()
        now_s = self._clock.monotonic()
        if now_s < self._find_again_s:
            return True
        self._processes.find()
        took_s = self._clock.monotonic() - now_s
        self._find_again_s = now_s + max(_FIND_S, _NUM_PAUSES * took_s)
        return False

    def _round(self) -> float | None:
        waited = [self._wake_reader]
        if self._events.descriptor is not None:
            waited.append(self._events.descriptor)
        ready = readable(waited, _FIND_S if self._is_early else _TICK_S)
        if not self.is_aborted:
            with self._lock:
                if self._events.read() or not ready:
                    self._is_early = self._look_for_processes()
                self._look_for_room(self._clock.monotonic())
        return _PAUSE_S
