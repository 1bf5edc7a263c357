"""Reads the files of one host's training, each from the offset where the last poll ended.

Where: `training_watch` polls every second in its thread, less often if a poll is expensive; findings go to its
`FindingStore`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from clary.agent.training import event_records, growing_files, progress_words, value_lines, wandb_records
from clary.agent.training.event_records import MAX_RECORD_BYTES
from clary.agent.training.event_summaries import EventReader, Malformed
from clary.agent.training.file_kinds import STATE_FILE, STATE_FOLDERS, FileKind, Place, RunNames, place_of
from clary.agent.training.growing_files import FoundFile
from clary.contract.picture_files import MAX_IMAGE_BYTES, MAX_IMAGE_PIXELS
from clary.contract.training_values import Finding, FindingKind, TrainingProgress

PIECE_BYTES = 256 * 1024
MAX_LOOK_BYTES = 16 * 1024 * 1024  # read in one poll; the next poll continues
MAX_FILES = 2_000  # files that are followed
MAX_STATE_BYTES = 4 * 1024 * 1024  # of trainer_state.json, which holds the history of the training
MAX_STATE_ENTRIES = 2_000  # file names read in the search for trainer_state.json
_RECORD_MARGIN_BYTES = 64


@dataclass
class _Tail:
    """One file, and how far it is read."""

    place: Place
    inode: int
    offset: int = 0  # may exceed the file's size while a skipped record is still being written
    seen_bytes: int = 0  # size of the file at the last poll
    piece_bytes: int = field(default_factory=lambda: PIECE_BYTES)
    is_lost: bool = False


class FileReading:
    """Follows the files below one `/opt/ml`; used by one thread.

    Args:
        root: the tree as the agent sees it.
        folders: folders below `root` to walk.
        on_note: called with a sentence on what is wrong with a file, once for each file.
    """

    def __init__(self, root: Path, folders: tuple[str, ...], *, on_note: Callable[[str], None]) -> None:
        self._root = root
        self._folders = folders
        self._on_note = on_note
        self._tails: dict[str, _Tail] = {}
        self._events = EventReader()
        self._names = RunNames()
        self._states: dict[str, int] = {}  # path of a state file -> when it was written, in nanoseconds
        self._told: set[str] = set()
        self.is_behind = False  # whether the last poll has reached its limit and left bytes unread

    def skip_what_stands(self) -> None:
        """Mark the present content of the files as known: it came with an earlier attempt's checkpoints."""
        for found, place in self._found():
            self._tails[found.path] = _Tail(
                place=place, inode=found.inode, offset=found.size_bytes, seen_bytes=found.size_bytes
            )
        for state in self._state_files():
            self._states[state.path] = state.modified_ns

    def look(self) -> Iterator[Finding]:
        """Yield the findings written since the last poll, file by file."""
        left = MAX_LOOK_BYTES
        self.is_behind = False
        for found, place in sorted(self._found(), key=lambda item: item[0].path):
            tail = self._tails.get(found.path)
            if tail is None or tail.inode != found.inode or found.size_bytes < tail.seen_bytes:
                if tail is None and len(self._tails) >= MAX_FILES:
                    self._tell("files", f"more than {MAX_FILES} files with values are written: the others are not read")
                    continue
                tail = self._tails[found.path] = _Tail(place=place, inode=found.inode)
            tail.seen_bytes = found.size_bytes
            while not tail.is_lost and tail.offset < found.size_bytes and left > 0:
                before = tail.offset
                yield from self._read(found.path, tail)
                left -= max(0, tail.offset - before)
                if tail.offset == before:
                    break
                self.is_behind = left <= 0

    def state(self, now_ms: int) -> TrainingProgress | None:
        """Return the progress in the newest trainer_state.json, if it is new, or None."""
        found = self._state_files()
        changed = [one for one in found if self._states.get(one.path) != one.modified_ns]
        self._states = {one.path: one.modified_ns for one in found}  # without files that were removed
        newest = max(changed, key=lambda one: one.modified_ns, default=None)
        if newest is None:
            return None
        read = growing_files.read_piece(self._root, newest.path, offset=0, max_bytes=MAX_STATE_BYTES)
        return None if read is None else progress_words.of_trainer_state(read[1], at_ms=now_ms)

    def _found(self) -> Iterator[tuple[FoundFile, Place]]:
        for folder in self._folders:
            for found in growing_files.walk(self._root, folder):
                place = place_of(found.path)
                if place is not None:
                    yield found, place

    def _state_files(self) -> list[FoundFile]:
        return [
            found
            for folder in STATE_FOLDERS
            for found in growing_files.walk(self._root, folder, max_entries=MAX_STATE_ENTRIES)
            if found.path.endswith(f"/{STATE_FILE}")
        ]

    def _read(self, path: str, tail: _Tail) -> Iterator[Finding]:
        read = growing_files.read_piece(self._root, path, offset=tail.offset, max_bytes=tail.piece_bytes)
        if read is None or read[0] != tail.inode or not read[1]:
            return
        if tail.place.kind in (FileKind.EVENTS, FileKind.WANDB):
            yield from self._read_records(path, tail, read[1])
        else:
            yield from self._read_lines(tail, read[1])

    def _read_records(self, path: str, tail: _Tail, piece: bytes) -> Iterator[Finding]:
        is_wandb = tail.place.kind is FileKind.WANDB
        split = wandb_records.split_records if is_wandb else event_records.split_records
        read: Callable[..., Iterable[Finding]] = self._events.read
        if is_wandb:
            read = functools.partial(
                wandb_records.findings_of, on_note=lambda note: self._tell(f"{path} values", f"{path}: {note}")
            )
        records = split(piece, offset=tail.offset)
        if records.is_lost:
            tail.is_lost = True
            is_unknown = is_wandb and records.next_offset == 0
            words = "is no W&B log of version 0: it is not read" if is_unknown else ""
            self._tell(
                path, f"{path} {words or f'is damaged at byte {records.next_offset}: it is not read any further'}"
            )
        if records.num_damaged:
            self._tell(path, f"{path} has a damaged record before byte {records.next_offset}: it is left out")
        if records.num_large:
            self._tell(path, f"{path} has records of more than {MAX_RECORD_BYTES >> 20} MiB: they are left out")
        if records.next_offset == tail.offset and len(piece) == tail.piece_bytes:
            tail.piece_bytes = MAX_RECORD_BYTES + _RECORD_MARGIN_BYTES  # one record is longer than a piece
            yield from () if len(piece) > PIECE_BYTES else self._read(path, tail)
            return
        tail.offset = records.next_offset
        tail.piece_bytes = PIECE_BYTES
        for record in records.records:
            try:
                findings = read(record.data, offset=record.offset, file=path)
            except Malformed as error:
                self._tell(path, f"{path}: the record at byte {record.offset} is not an event ({error}): left out")
                continue
            for finding in findings:
                if finding.kind is FindingKind.IMAGE and not finding.data:
                    self._tell_of_picture(path, finding)
                yield self._named(tail, finding)

    def _read_lines(self, tail: _Tail, piece: bytes) -> Iterator[Finding]:
        whole, newline, _ = piece.rpartition(b"\n")
        if not newline:
            if len(piece) == tail.piece_bytes:
                tail.offset += len(piece)  # a line without an end; no value is that long
            return
        tail.offset += len(whole) + 1
        for line in whole.split(b"\n"):
            if tail.place.kind is FileKind.MLFLOW:
                finding = value_lines.of_mlflow_line(line, name=tail.place.name)
            else:
                finding = value_lines.of_json_line(line)
            if finding is not None:
                yield self._named(tail, finding)

    def _named(self, tail: _Tail, finding: Finding) -> Finding:
        name = self._names.name(tail.place, finding.name)
        return replace(finding, name=name) if name != finding.name and value_lines.is_name(name) else finding

    def _tell_of_picture(self, path: str, finding: Finding) -> None:
        kept = f"PNG, JPEG and GIF of up to {MAX_IMAGE_BYTES >> 10} KiB and {MAX_IMAGE_PIXELS >> 20} million pixels"
        tag = f"{finding.name[:80]!r} of step {finding.step}, {finding.size_bytes} bytes"
        self._tell("pictures", f"{path} has pictures that are not kept, such as {tag}: kept are {kept}")

    def _tell(self, what: str, sentence: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._on_note(sentence)
