"""The buffer between the program's pipes and a disk that may hang: order, bounds, waits, and notices of lost output."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable

import pytest

from clary.agent.log.output_buffer import OutputBuffer

PATIENCE_S = 60.0
LOST = "were lost here: the disk of this host did not take them in time"


class Taker:
    """Records its output; blocks at its gate, as a hanging disk does."""

    def __init__(self) -> None:
        self.taken: list[tuple[Hashable, object]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.has_arrived = threading.Event()

    def on_output(self, key: Hashable, data: bytes) -> None:
        self._take(key, data)

    def on_gap(self, key: Hashable, sentence: str) -> None:
        self._take(key, sentence)

    def say(self, *sentences: str) -> None:
        self._take("agent", sentences)

    def text_of(self, key: Hashable) -> bytes:
        return b"".join(item for owner, item in self.taken if owner == key and isinstance(item, bytes))

    def _take(self, key: Hashable, item: object) -> None:
        self.has_arrived.set()
        assert self.gate.wait(PATIENCE_S)
        self.taken.append((key, item))


@pytest.fixture
def taker() -> Taker:
    return Taker()


@pytest.fixture
def buffer_of(taker: Taker):
    buffers = []

    def build(*, max_bytes: int = 1 << 20, is_stuck: bool = True) -> OutputBuffer:
        buffers.append(OutputBuffer(taker, max_bytes=max_bytes, is_stuck=lambda _thread: is_stuck))
        return buffers[-1]

    yield build
    taker.gate.set()
    for buffer in buffers:
        assert buffer.close(PATIENCE_S)


def hang(taker: Taker, buffer: OutputBuffer) -> None:
    """Block the buffer's thread inside the taker."""
    taker.gate.clear()
    buffer.put("first", b"held\n")
    assert taker.has_arrived.wait(PATIENCE_S)


def test_output_and_sentences_keep_the_order_of_their_arrival(buffer_of, taker: Taker) -> None:
    buffer = buffer_of()
    buffer.put("a", b"one ")
    buffer.put("a", b"line\n")
    buffer.say("between")
    buffer.put("b", b"other\n")
    buffer.put("a", b"last")
    buffer.put("a", b"")
    assert buffer.flush(PATIENCE_S)
    assert taker.taken == [("a", b"one line\n"), ("agent", ("between",)), ("b", b"other\n"), ("a", b"last"), ("a", b"")]


def test_many_small_pieces_arrive_whole(buffer_of, taker: Taker) -> None:
    buffer = buffer_of()
    pieces = [b"%d\n" % number for number in range(20_000)]
    for piece in pieces:
        buffer.put("a", piece)
    assert buffer.flush(PATIENCE_S)
    assert taker.text_of("a") == b"".join(pieces)
    assert len(taker.taken) < len(pieces)


def test_a_hanging_disk_delays_no_writer_while_there_is_room(buffer_of, taker: Taker) -> None:
    buffer = buffer_of()
    hang(taker, buffer)
    for number in range(1_000):
        buffer.put("a", b"%d\n" % number)
    buffer.say("the supervisor goes on")
    assert not buffer.flush(0.0)
    taker.gate.set()
    assert buffer.flush(PATIENCE_S)
    assert taker.text_of("a") == b"".join(b"%d\n" % number for number in range(1_000))
    assert buffer.num_lost == 0


def test_lines_that_find_no_room_are_dropped_and_the_log_marks_the_gap(buffer_of, taker: Taker) -> None:
    buffer = buffer_of(max_bytes=10_000)
    hang(taker, buffer)
    kept = b"k" * 8_999 + b"\n"
    buffer.put("a", kept)
    for _ in range(50):
        buffer.put("a", b"dropped\n" * 1_000)
    assert buffer.num_lost == 50_000
    taker.gate.set()
    assert buffer.flush(PATIENCE_S)
    buffer.put("a", b"after\n")
    assert buffer.flush(PATIENCE_S)
    gap = f"clary: 50000 lines (400000 bytes) {LOST}"
    assert taker.taken[1:] == [("a", kept), ("a", gap), ("a", b"after\n")]


def test_a_piece_that_fits_is_dropped_until_half_of_the_buffer_is_free(buffer_of, taker: Taker) -> None:
    buffer = buffer_of(max_bytes=10_000)
    hang(taker, buffer)
    kept = b"k" * 8_999 + b"\n"
    buffer.put("a", kept)
    for _ in range(3):
        buffer.put("a", b"too large" * 1_000 + b"\n")
        buffer.put("a", b"fits\n")
        buffer.put("b", b"fits too\n")
    assert buffer.num_lost == 9
    taker.gate.set()
    assert buffer.flush(PATIENCE_S)
    buffer.put("a", b"after\n")
    buffer.put("b", b"after\n")
    assert buffer.flush(PATIENCE_S)
    gap_a, gap_b = (f"clary: {lines} lines ({size} bytes) {LOST}" for lines, size in ((6, 27_018), (3, 27)))
    assert taker.taken[1:] == [("a", kept), ("a", gap_a), ("b", gap_b), ("a", b"after\n"), ("b", b"after\n")]


def test_dropping_many_lines_costs_one_wait(buffer_of, taker: Taker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clary.agent.log.output_buffer.STUCK_S", 0.2)
    buffer = buffer_of(max_bytes=1_000)
    hang(taker, buffer)
    started_s = time.monotonic()
    for _ in range(500):
        buffer.put("a", b"x" * 2_000)
    assert time.monotonic() - started_s < 500 * 0.2 / 4


def test_a_fast_writer_waits_for_room_and_loses_nothing(buffer_of, taker: Taker) -> None:
    buffer = buffer_of(max_bytes=1_000, is_stuck=False)
    hang(taker, buffer)
    buffer.put("a", b"x" * 1_000)
    timer = threading.Timer(0.1, taker.gate.set)
    timer.start()
    buffer.put("a", b"y" * 1_000)
    timer.join()
    assert buffer.flush(PATIENCE_S)
    assert taker.text_of("a") == b"x" * 1_000 + b"y" * 1_000
    assert buffer.num_lost == 0


def test_a_defect_of_the_log_does_not_end_it(buffer_of, taker: Taker, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = buffer_of()
    with monkeypatch.context() as patched:
        patched.setattr(taker, "on_output", lambda key, data: 1 / 0)
        buffer.put("a", b"lost\n")
        assert buffer.flush(PATIENCE_S)
    buffer.put("a", b"after\n")
    assert buffer.flush(PATIENCE_S)
    assert taker.taken == [("a", b"after\n")]
