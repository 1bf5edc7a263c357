"""Conversion of processes' output and the agent's sentences into lines of the spool.

Where: `output_buffer` passes the output that `clary.agent.host` reads from the program's pipes, and the supervisor's
sentences. Both calls wait only for a write to a local file.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime

from clary.agent.log.error_scanner import ErrorScanner
from clary.agent.log.last_words import LINE_CHARACTERS, NUM_LINES
from clary.agent.log.log_limit import LogLimit
from clary.agent.log.log_lines import PIECE_BYTES, LineSplitter
from clary.agent.log.log_loss import OWN_PREFIX
from clary.agent.log.log_spool import LogSpool
from clary.base.clock import Clock
from clary.contract.agent_protocol import Clue
from clary.contract.launch_plan import AnsiCodes, LogRules


@dataclass
class _Stream:
    """One output of one process."""

    rank: int | None
    prefix: str
    splitter: LineSplitter
    has_told_cut: bool = False
    last_lines: deque[tuple[datetime, str]] = field(default_factory=lambda: deque(maxlen=NUM_LINES))


class LogIntake:
    """Converts output into numbered lines; thread-safe.

    Args:
        spool: receives the lines.
        clock: source of times for progress bars and for the rate of lines.
        rules: limits on the output in the log.
        on_lines: called with printed lines and their rank; must not block.
    """

    def __init__(
        self,
        spool: LogSpool,
        *,
        clock: Clock,
        rules: LogRules | None = None,
        on_lines: Callable[[list[str], int | None], None] | None = None,
    ) -> None:
        self._spool = spool
        self._clock = clock
        self._rules = rules or LogRules()
        self._on_lines = on_lines
        self._limit = LogLimit(self._rules, now_s=clock.monotonic())
        self.num_outputs = 0  # number of pieces of output so far
        self._lock = threading.Lock()
        self._streams: dict[Hashable, _Stream] = {}
        self._ended: dict[int | None, deque[tuple[datetime, str]]] = {}  # rank -> last lines of streams that have ended

    def open(self, key: Hashable, *, rank: int | None = None, prefix: str = "") -> None:
        """Set the prefix and rank of lines of the stream `key`; other streams have neither."""
        with self._lock:
            self._streams[key] = self._new_stream(rank, prefix)

    def on_output(self, key: Hashable, data: bytes) -> None:
        """Receive bytes that one process printed, in order; empty bytes end the stream."""
        with self._lock:
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = self._new_stream(None, "")
            if data:
                self.num_outputs += 1
                lines = stream.splitter.feed(data, self._clock.monotonic())
            else:
                lines = stream.splitter.finish()
                del self._streams[key]
            self._append(stream, lines)
            if not data:
                self._ended[stream.rank] = stream.last_lines

    @property
    def num_dropped(self) -> int:
        """Number of lines dropped because they came faster than the rules allow."""
        return self._limit.num_dropped

    def last_lines(self, rank: int | None) -> list[str]:
        """Return the last lines that a process printed, without prefixes; `rank` as passed to `open`."""
        with self._lock:
            open_ones = (stream.last_lines for stream in self._streams.values() if stream.rank == rank)
            return [line for _, line in next(open_ones, self._ended.get(rank, ()))]

    def clues(self) -> tuple[Clue, ...]:
        """Return the exceptions among the last lines of every process."""
        with self._lock:
            streams = dict(self._ended)
            streams.update((stream.rank, stream.last_lines) for stream in self._streams.values())
            found: list[Clue] = []
            for rank, lines in streams.items():
                scanner = ErrorScanner(rank)
                for at, line in lines:
                    scanner.feed(line, at)
                found += scanner.clues
        return tuple(found)

    def say(self, *sentences: str) -> None:
        """Append the agent's own lines."""
        lines = [OWN_PREFIX + line for sentence in sentences for line in sentence.splitlines() if line.strip()]
        with self._lock:
            self._spool.append(lines, is_own=True)

    def on_gap(self, key: Hashable, sentence: str) -> None:
        """Record a gap in the output of one stream, which ends its incomplete line.

        Args:
            key: of the stream.
            sentence: text about the gap for the log.
        """
        with self._lock:
            stream = self._streams.get(key)
            if stream is not None:
                self._append(stream, stream.splitter.finish())
            self._spool.append([sentence], is_own=True)

    def tick(self) -> None:
        """Log idle progress bars and report dropped lines; call it about once per second."""
        with self._lock:
            for stream in self._streams.values():
                self._append(stream, stream.splitter.tick(self._clock.monotonic()))
            self._tell_dropped()

    def finish(self) -> None:
        """End every stream: an incomplete last line becomes a line."""
        with self._lock:
            for stream in self._streams.values():
                self._append(stream, stream.splitter.finish())
                self._ended[stream.rank] = stream.last_lines
            self._streams.clear()
            self._tell_dropped(is_last=True)
            self._spool.tell_loss()

    def _new_stream(self, rank: int | None, prefix: str) -> _Stream:
        return _Stream(rank=rank, prefix=prefix, splitter=LineSplitter(strips_ansi=self._rules.ansi is AnsiCodes.STRIP))

    def _tell_dropped(self, *, is_last: bool = False) -> None:
        sentence = self._limit.notice(self._clock.monotonic(), is_last=is_last)
        if sentence is not None:
            self._spool.append([OWN_PREFIX + sentence], is_own=True)

    def _append(self, stream: _Stream, lines: list[str]) -> None:
        if not lines:
            return
        if self._on_lines is not None:
            self._on_lines(lines, stream.rank)
        now = self._clock.now()
        stream.last_lines.extend((now, line[:LINE_CHARACTERS]) for line in lines[-NUM_LINES:])
        if stream.prefix:
            lines = [stream.prefix + line for line in lines]
        self._tell_dropped()  # the missing output was printed before these lines
        self._spool.append(self._limit.admit(lines, self._clock.monotonic()), rank=stream.rank)
        if stream.splitter.has_cut and not stream.has_told_cut:
            stream.has_told_cut = True
            self._spool.append([f"{OWN_PREFIX}lines longer than {PIECE_BYTES} bytes are shown in pieces"], is_own=True)
