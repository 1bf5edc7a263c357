"""Queue of numbered log lines on local disk, from their printing until the service has stored them.

Where: `log_intake` appends lines, `log_shipper` reads them and removes lines that the service has stored. The spool
decouples a program from the service: printing costs one write to a local file, even if the service is unreachable, and
memory stays bounded. The lines lie in files of `SEGMENT_BYTES`, named after their first line's number; a file is
removed once all its lines are stored.

[Note: lines lost by a full spool]
A full spool accepts no new lines. A line in the spool is never removed before it is stored, so each of them reaches the
log, and a batch can be sent again unchanged. `log_intake` keeps a program's last lines in memory, so that the cause of
a failure is named even if its line is lost. Where lines are missing, the log has a sentence with their number and the
reason; that sentence and the agent's other lines are kept even if the disk is full. A full disk does not lose lines at
once: `MEMORY_BYTES` of lines are kept in memory until the service has stored them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clary.agent.log.log_loss import OWN_PREFIX, LogLoss
from clary.agent.log.log_segment import Segment
from clary.base.clock import Clock, SystemClock
from clary.base.errors import AgentError
from clary.contract.agent_protocol import LogBlock
from clary.contract.log_blocks import pack_block, segment_name

SEGMENT_BYTES = 16 * 1024 * 1024
SEGMENTS_OF_BOUND = 8  # minimum number of files of a bounded spool, so that stored lines soon make room
BLOCK_LINES = 4096  # lines per block
REFUSAL_S = 1.0  # pause after lost lines, so that one sentence reports all of them
OWN_BYTES = 1024 * 1024  # extra room for the agent's own lines above the limit
MEMORY_BYTES = 4 * 1024 * 1024  # room for lines in memory while the disk accepts no lines
OWN_MEMORY_BYTES = 256 * 1024  # extra room in memory for the agent's own lines
MEMORY_SEGMENT_BYTES = 256 * 1024  # lines in memory are removed in pieces of this size
_SERVICE_LOSS = (
    OWN_PREFIX + "{} lines were lost here: the service had stored them, lost them, and this host has no copy"
)


@dataclass
class _Cursor:
    """The current read position."""

    sequence: int = 0  # next line's number
    segment: Segment | None = None
    offset: int = 0
    unread: list[LogBlock] = field(default_factory=list)  # read but not yet returned, in reverse order


class LogSpool:
    """An append-only queue of lines on disk; thread-safe for many writers and one reader.

    Args:
        folder: folder of the files; created if missing.
        clock: source of times for retries after a refused write.
        max_bytes: limit on all lines, which only the agent's own lines exceed; 0: no limit.
        segment_bytes: size at which a new file begins.
        memory_bytes: limit on lines in memory while the disk accepts no lines; the agent's own lines may exceed it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock | None = None,
        max_bytes: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._clock = clock or SystemClock()
        self._max_bytes = max_bytes
        self._segment_bytes = min(segment_bytes, max(max_bytes // SEGMENTS_OF_BOUND, 1)) if max_bytes else segment_bytes
        self._changed = threading.Condition()
        self._segments: list[Segment] = []
        self._end_sequence = 0
        self._fallen = 0  # by how much the log's numbers are lower, because the service has lost lines
        self._held_bytes = 0
        self._max_memory_bytes = memory_bytes
        self._memory_bytes = 0  # bytes of the lines held in memory
        self._disk_refused: tuple[float, str] | None = None  # when the disk last refused a block, and why
        self._last_at_ms = 0
        self._loss = LogLoss()
        self._refused_at_s: float | None = None  # time of the last loss
        self._cursor = _Cursor()
        self._is_woken = False
        self._is_closed = False

    @property
    def end_sequence(self) -> int:
        """Number of the next line; all lower numbers have been appended."""
        return self._end_sequence

    @property
    def oldest_sequence(self) -> int:
        """Number of the oldest line that can be read; `end_sequence` without any."""
        with self._changed:
            return self._segments[0].first_sequence if self._segments else self._end_sequence

    @property
    def num_lost(self) -> int:
        """Number of lines lost because of the disk or the limit."""
        return self._loss.num_lines

    def append(
        self, lines: Sequence[str], *, rank: int | None = None, at_ms: int | None = None, is_own: bool = False
    ) -> None:
        """Append lines with a common time; times never decrease within a spool.

        A full disk or spool raises no error and causes no wait: the lines are lost, and the log reports this.

        Args:
            lines: not empty, without line ends.
            rank: of the process that printed them.
            at_ms: time of the lines; None: now.
            is_own: whether they are the agent's own lines.
        """
        with self._changed:
            if self._is_closed or not lines:
                return
            now_ms = at_ms if at_ms is not None else time.time_ns() // 1_000_000
            self._last_at_ms = max(self._last_at_ms, now_ms)
            if is_own or not self._is_refusing():
                self._tell_loss(is_last=is_own)
            for first in range(0, len(lines), BLOCK_LINES):
                some = lines[first : first + BLOCK_LINES]
                text = "\n".join(some).encode("utf-8", "backslashreplace")
                block = pack_block(text, at_ms=self._last_at_ms, rank=rank)
                refusal = self._loss.newest_reason if self._loss.is_open and not is_own else ""
                if refusal := refusal or self._write(block, len(some), is_own=is_own):
                    self._loss.add(len(some), len(text), refusal)
                    self._refused_at_s = self._clock.monotonic()
            self._changed.notify_all()

    def tell_loss(self) -> None:
        """Report the lines lost since the last report in the log; call it after the last line."""
        with self._changed:
            if not self._is_closed:
                self._tell_loss(is_last=True)
            self._changed.notify_all()

    def wait(self, after: int, timeout_s: float) -> bool:
        """Wait until a line numbered `after` or higher exists, `wake` is called, or `timeout_s` have passed."""
        with self._changed:
            has_come = self._changed.wait_for(lambda: self._end_sequence > after or self._is_woken, timeout_s)
            self._is_woken = False
            return has_come

    def wake(self) -> None:
        """End the current or next `wait` at once."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def read(self, first_sequence: int, *, max_lines: int, max_bytes: int) -> list[LogBlock]:
        """Return lines from number `first_sequence` on, up to both limits, but at least one if it exists.

        Args:
            first_sequence: number of the first line.
            max_lines: limit on lines; a larger block is split.
            max_bytes: limit on text; a block is not split for it.

        Raises: AgentError for a removed number (see `close_gap`), or if the disk returns fewer bytes than were written.
        """
        if first_sequence != self._cursor.sequence:
            self._cursor = _Cursor(sequence=first_sequence)
        blocks: list[LogBlock] = []
        size_bytes = 0
        while max_lines > 0 and (self._cursor.unread or self._fill()):
            block = self._cursor.unread.pop()
            size_bytes += len(block.text) if block.text.isascii() else len(block.text.encode())
            if blocks and size_bytes > max_bytes:
                self._cursor.unread.append(block)
                break
            if block.num_lines > max_lines:
                block, rest = _cut(block, max_lines)
                self._cursor.unread.append(rest)
            blocks.append(block)
            self._cursor.sequence += block.num_lines
            max_lines -= block.num_lines
        return blocks

    def close_gap(self, first_sequence: int) -> int:
        """Prepare the reading from number `first_sequence` on, although the service has lost lines that it had stored.

        If lines from that number on were removed here, one line before the oldest line that is left names their count.
        The log continues with that line: all numbers from there on are lower in the log than in this spool, and the
        files are renamed to the log's numbers, which the service reads if this agent dies.

        Returns: by how much the numbers of the log have fallen; 0 if each line is still here, or only one was removed.
        """
        with self._changed:
            oldest = self._segments[0].first_sequence if self._segments else self._end_sequence
            num_lost = oldest - first_sequence
            if num_lost <= 0:
                return 0
            self._fallen += num_lost - 1
            for segment in self._segments:  # in rising order, so that no file takes the name of another
                segment.rename(self._path_of(segment.first_sequence))
            block = pack_block(_SERVICE_LOSS.format(num_lost).encode(), at_ms=self._last_at_ms, rank=None)
            self._segments.insert(0, self._mark(oldest - 1, block))
            self._held_bytes += len(block)
            self._cursor = _Cursor(sequence=oldest - 1)
            return num_lost - 1

    def let_go(self, next_sequence: int) -> None:
        """Remove files with only lines below `next_sequence`; the last file only if it is full."""
        with self._changed:
            while self._segments:
                first = self._segments[0]
                is_done = first.end_sequence <= min(next_sequence, self._cursor.sequence)
                if not is_done or (len(self._segments) == 1 and self._is_writable(first)):
                    break
                self._remove(self._segments.pop(0))

    def close(self, *, keeps_files: bool = False) -> None:
        """Remove all files, or keep them for a reader after the agent's end; later lines are dropped."""
        with self._changed:
            self._is_closed = True
            while self._segments:
                segment = self._segments.pop()
                if keeps_files:
                    segment.close()
                else:
                    self._remove(segment)
            self._changed.notify_all()

    def _tell_loss(self, *, is_last: bool) -> None:
        """Write the sentence about lost lines before the next lines.

        Args:
            is_last: whether to write it even if the spool is full.
        """
        sentence = self._loss.sentence()
        if sentence is None:
            return
        is_full = self._max_bytes and self._held_bytes > self._max_bytes - self._segment_bytes
        block = pack_block(sentence.encode(), at_ms=self._last_at_ms, rank=None)
        if (is_full and not is_last) or self._write(block, 1, is_own=is_last):
            self._refused_at_s = self._clock.monotonic()
        else:
            self._loss.note_told()

    def _is_refusing(self) -> bool:
        return self._refused_at_s is not None and self._clock.monotonic() - self._refused_at_s < REFUSAL_S

    def _write(self, block: bytes, num_lines: int, *, is_own: bool) -> str:
        """Write a block; return "", or the reason of the refusal."""
        if self._max_bytes and self._held_bytes + len(block) > self._max_bytes + is_own * OWN_BYTES:
            return f"the spool was full (setting log_spool_max_bytes: {self._max_bytes}); the service took no lines"
        if refusal := self._write_to_disk(block, num_lines):
            if self._memory_bytes + len(block) > self._max_memory_bytes + is_own * OWN_MEMORY_BYTES:
                return f"the disk of this host refused them ({refusal})"
            self._memory_segment().append(block, num_lines)
            self._memory_bytes += len(block)
        self._held_bytes += len(block)
        self._end_sequence += num_lines
        return ""

    def _write_to_disk(self, block: bytes, num_lines: int) -> str:
        """Write a block to a file; return "", or the disk's error."""
        if self._disk_refused is not None and self._clock.monotonic() - self._disk_refused[0] < REFUSAL_S:
            return self._disk_refused[1]
        try:
            self._writable_segment().append(block, num_lines)
        except OSError as error:
            if self._segments and not self._segments[-1].num_lines:
                self._remove(self._segments.pop())
            self._disk_refused = self._clock.monotonic(), str(error.strerror)
            return self._disk_refused[1]
        self._disk_refused = None
        return ""

    def _is_writable(self, segment: Segment) -> bool:
        return segment.size_bytes < self._segment_bytes and not segment.is_in_memory

    def _writable_segment(self) -> Segment:
        if self._segments and self._is_writable(self._segments[-1]):
            return self._segments[-1]
        self._segments.append(Segment.create(self._next_path(), first_sequence=self._end_sequence))
        return self._segments[-1]

    def _memory_segment(self) -> Segment:
        last = self._segments[-1] if self._segments else None
        if last is None or not last.is_in_memory or last.size_bytes >= MEMORY_SEGMENT_BYTES:
            self._segments.append(Segment(self._next_path(), None, first_sequence=self._end_sequence))
        return self._segments[-1]

    def _mark(self, sequence: int, block: bytes) -> Segment:
        """Return a segment of one line that begins before all others; in memory if the disk refuses it."""
        path = self._path_of(sequence)
        try:
            segment = Segment.create(path, first_sequence=sequence)
            try:
                segment.append(block, 1)
            except OSError:
                segment.remove()
                raise
        except OSError:
            segment = Segment(path, None, first_sequence=sequence)
            segment.append(block, 1)
            self._memory_bytes += len(block)
        return segment

    def _next_path(self) -> Path:
        return self._path_of(self._end_sequence)

    def _path_of(self, sequence: int) -> Path:
        return self._folder / segment_name(sequence - self._fallen)

    def _remove(self, segment: Segment) -> None:
        self._held_bytes -= segment.size_bytes
        self._memory_bytes -= segment.size_bytes if segment.is_in_memory else 0
        segment.remove()

    def _fill(self) -> bool:
        """Read the next blocks into the cursor; return False at the end."""
        cursor = self._cursor
        with self._changed:
            if self._segments and cursor.sequence < self._segments[0].first_sequence:
                raise AgentError(
                    f"log line {cursor.sequence} is asked for, but lines below {self._segments[0].first_sequence} were"
                    " stored by the service and removed here; the service has lost lines"
                )
            segment = next((item for item in self._segments if cursor.sequence < item.end_sequence), None)
            if segment is None:
                return False
            size_bytes = segment.size_bytes
        at = cursor.sequence
        if segment is not cursor.segment:
            cursor.segment, cursor.offset, at = segment, 0, segment.first_sequence
        while not cursor.unread:
            blocks, cursor.offset = segment.read(cursor.offset, size_bytes)
            for block in blocks:  # skip lines before the wanted line; rare: the service has requested lines again
                num_lines = block.num_lines if at < cursor.sequence else 0
                if at + num_lines > cursor.sequence or not num_lines:
                    wanted = _cut(block, cursor.sequence - at)[1] if at < cursor.sequence else block
                    cursor.unread.append(wanted)
                    at = max(at, cursor.sequence)
                else:
                    at += num_lines
        cursor.unread.reverse()
        return True


def _cut(block: LogBlock, num_lines: int) -> tuple[LogBlock, LogBlock]:
    """Split a block after `num_lines`; return both parts."""
    lines = block.lines()
    parts = ("\n".join(lines[:num_lines]), "\n".join(lines[num_lines:]))
    head, tail = (LogBlock(at_ms=block.at_ms, text=text, rank=block.rank) for text in parts)
    return head, tail
