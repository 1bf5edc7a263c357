"""Memory buffer for a program's output, between the reader of its pipes and the writer of the log to disk.

Where: `host_log` adds output that `clary.agent.host` has read, and the supervisor's sentences; the buffer's thread
passes both to `log_intake`, in order. A disk can block a write for seconds (many dirty pages, an unreachable network, a
failing medium), and no printing process may wait for it: output stays in this buffer meanwhile, up to `BUFFER_BYTES`.

[Note: a full buffer] If lines arrive faster than this machine's processors can process them, the reader waits for room
for up to `BUSY_S`, which slows down the program, as any pipe does, and loses no output if there is room by then. If a
disk hangs, the reader waits for `STUCK_S`. After either wait without success it drops all output, without a wait, until
half of the buffer is free: the log has one gap then, not one after each piece that fits. The kernel's state of the
writing thread distinguishes the two cases.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from clary.agent.log.log_loss import LogLoss

BUFFER_BYTES = 32 * 1024 * 1024
STUCK_S = 0.005  # longest hang of a disk before output is dropped
# time for which the writer gathers more output; a wake-up for one line costs as much as for many
GATHER_S = 0.05
GATHER_BYTES = 256 * 1024  # this much output is passed on at once, without a wait
BUSY_S = 1.0  # longest wait for a busy processor
_UNINTERRUPTIBLE = "D"  # state of a thread that waits for a disk; proc(5)
_OVERHEAD_BYTES = 256  # memory overhead per item

logger = logging.getLogger(__name__)


@dataclass
class _Output:
    """Adjacent output of one stream."""

    key: Hashable
    parts: list[bytes]
    size_bytes: int


@dataclass(frozen=True)
class _Act:
    """A call to be made in its order among the pieces of output."""

    do: Callable[[], None]
    size_bytes: int


class OutputTaker(Protocol):
    """The receiver of the buffer's output (`log_intake`); may wait for a disk."""

    def on_output(self, key: Hashable, data: bytes) -> None:
        """Receive bytes of one stream, in order; empty bytes end it."""

    def on_gap(self, key: Hashable, sentence: str) -> None:
        """Record a gap in the output of one stream."""

    def say(self, *sentences: str) -> None:
        """Receive the agent's own lines."""


class OutputBuffer:
    """Passes the output of many threads to the taker, in order; `close` ends the buffer's thread.

    Args:
        taker: called from one thread only.
        max_bytes: limit of buffered output.
        is_stuck: returns whether the thread with the given kernel thread id waits for a disk.
    """

    def __init__(
        self,
        taker: OutputTaker,
        *,
        max_bytes: int = BUFFER_BYTES,
        is_stuck: Callable[[int], bool] | None = None,
    ) -> None:
        self._taker = taker
        self._max_bytes = max_bytes
        self._is_stuck = is_stuck or _waits_for_disk
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # signalled after an item was passed on
        self._wanted = threading.Condition(self._lock)  # signalled when the thread has work
        self._items: deque[_Output | _Act] = deque()
        self._held_bytes = 0
        self._is_urgent = False  # whether a thread waits in `flush`
        self._num_put = 0
        self._num_passed = 0
        self._losses: dict[Hashable, LogLoss] = {}
        self._is_dropping = False  # whether a wait for room has failed and half of the buffer was never free since
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="log-intake", daemon=True)
        self._thread.start()

    @property
    def num_lost(self) -> int:
        """Number of dropped lines."""
        with self._changed:
            return sum(loss.num_lines for loss in self._losses.values())

    def put(self, key: Hashable, data: bytes) -> None:
        """Receive bytes of one stream, in order; empty bytes end it. It may wait; see [Note: a full buffer]."""
        with self._changed:
            if data and (self._is_dropping or not (self._has_room(len(data)) or self._wait_for_room(len(data)))):
                loss = self._losses.setdefault(key, LogLoss())
                loss.add(data.count(b"\n"), len(data), "the disk of this host did not take them in time")
                return
            self._tell_loss(key)
            if data:
                self._put_output(key, data)
            else:
                self._put_act(lambda: self._taker.on_output(key, b""), 0)

    def say(self, *sentences: str) -> None:
        """Receive the agent's own lines, which follow the output so far."""
        with self._changed:
            self._put_act(lambda: self._taker.say(*sentences), sum(map(len, sentences)))

    def flush(self, timeout_s: float) -> bool:
        """Wait until all output so far, and reports of lost output, have been passed on; return False on timeout."""
        with self._changed:
            for key in self._losses:
                self._tell_loss(key)
            end = self._num_put
            self._is_urgent = True
            self._wanted.notify()
            return self._changed.wait_for(lambda: self._num_passed >= end, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Pass on the buffered output and end the thread; return whether it ended in time."""
        with self._changed:
            self._is_closing = self._is_urgent = True
            self._wanted.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _has_room(self, size_bytes: int) -> bool:
        return not self._items or self._held_bytes + size_bytes <= self._max_bytes

    def _wait_for_room(self, size_bytes: int) -> bool:
        """Wait for room; return whether there is room now."""
        started_s = time.monotonic()
        while time.monotonic() - started_s < BUSY_S:
            num_passed = self._num_passed
            if self._changed.wait_for(lambda: self._has_room(size_bytes), STUCK_S):
                return True
            thread = self._thread.native_id
            if num_passed == self._num_passed and thread is not None and self._is_stuck(thread):
                break
        self._is_dropping = True
        return False

    def _tell_loss(self, key: Hashable) -> None:
        loss = self._losses.get(key)
        sentence = loss.sentence() if loss is not None else None
        if loss is not None and sentence is not None:
            self._put_act(lambda: self._taker.on_gap(key, sentence), len(sentence))
            loss.note_told()

    def _put_output(self, key: Hashable, data: bytes) -> None:
        last = self._items[-1] if self._items else None
        if isinstance(last, _Output) and last.key == key and last.size_bytes < GATHER_BYTES:
            last.parts.append(data)
            last.size_bytes += len(data)
            self._note_put(len(data), is_new=False)
        else:
            self._items.append(_Output(key, [data], len(data) + _OVERHEAD_BYTES))
            self._note_put(len(data) + _OVERHEAD_BYTES, is_new=True)

    def _put_act(self, do: Callable[[], None], size_bytes: int) -> None:
        self._items.append(_Act(do, size_bytes + _OVERHEAD_BYTES))
        self._note_put(size_bytes + _OVERHEAD_BYTES, is_new=True)

    def _note_put(self, size_bytes: int, *, is_new: bool) -> None:
        was_enough = self._held_bytes >= GATHER_BYTES
        self._held_bytes += size_bytes
        self._num_put += is_new
        if (is_new and len(self._items) == 1) or (self._held_bytes >= GATHER_BYTES and not was_enough):
            self._wanted.notify()

    def _run(self) -> None:
        while (item := self._next_item()) is not None:
            try:
                if isinstance(item, _Output):
                    self._taker.on_output(item.key, b"".join(item.parts))
                else:
                    item.do()
            except Exception:  # error boundary: a defect of the log must not end the program
                logger.exception("a piece of the log was lost")
            with self._lock:
                self._held_bytes -= item.size_bytes
                self._num_passed += 1
                self._is_dropping = self._is_dropping and self._held_bytes > self._max_bytes // 2
                self._changed.notify_all()

    def _next_item(self) -> _Output | _Act | None:
        """Return the next item after a pause that gathers more output; None if the buffer is empty and closing."""
        with self._lock:
            if not self._items:
                self._is_urgent = self._is_closing
                self._wanted.wait_for(lambda: self._items or self._is_closing)
                self._wanted.wait_for(lambda: self._is_urgent or self._held_bytes >= GATHER_BYTES, GATHER_S)
            return self._items.popleft() if self._items else None


def _waits_for_disk(thread: int) -> bool:
    try:
        stat = Path(f"/proc/self/task/{thread}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == _UNINTERRUPTIBLE
