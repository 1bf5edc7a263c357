from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from clary.agent.log import log_spool
from clary.agent.log.log_spool import MEMORY_SEGMENT_BYTES, OWN_MEMORY_BYTES, REFUSAL_S, LogSpool
from clary.base.errors import AgentError
from clary.contract.log_blocks import segment_name
from clary.testing.fake_clock import FakeClock


@pytest.fixture
def spool(tmp_path: Path):
    spool = LogSpool(tmp_path / "spool", segment_bytes=400)
    yield spool
    spool.close()


def read_all(spool: LogSpool, first: int = 0) -> list[str]:
    blocks = spool.read(first, max_lines=10_000, max_bytes=1 << 30)
    return [line for block in blocks for line in block.lines()]


def test_lines_are_read_in_order_across_files(spool: LogSpool, tmp_path: Path) -> None:
    texts = [f"line {number}" for number in range(200)]
    for text in texts:
        spool.append([text], rank=3)
    assert len(list((tmp_path / "spool").iterdir())) > 3
    assert read_all(spool) == texts
    assert spool.end_sequence == 200


def test_both_bounds_of_a_read_hold_but_one_block_is_always_returned(spool: LogSpool) -> None:
    for text in ("a" * 10, "b" * 10, "c" * 100, "d"):
        spool.append([text])
    assert [block.text[0] for block in spool.read(0, max_lines=1, max_bytes=1000)] == ["a"]
    assert [block.text[0] for block in spool.read(1, max_lines=10, max_bytes=20)] == ["b"]
    assert [block.text[0] for block in spool.read(2, max_lines=10, max_bytes=20)] == ["c"]
    assert [block.text[0] for block in spool.read(3, max_lines=10, max_bytes=20)] == ["d"]
    assert spool.read(4, max_lines=10, max_bytes=20) == []


def test_lines_added_together_are_read_together_unless_they_are_too_many(
    spool: LogSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_spool, "BLOCK_LINES", 4)
    spool.append(list("abcdefghij"), rank=1)
    assert [block.text for block in spool.read(0, max_lines=6, max_bytes=1000)] == ["a\nb\nc\nd", "e\nf"]
    assert [(block.text, block.rank) for block in spool.read(6, max_lines=9, max_bytes=1000)] == [
        ("g\nh", 1),
        ("i\nj", 1),
    ]
    assert [block.text for block in spool.read(5, max_lines=9, max_bytes=1000)] == ["f\ng\nh", "i\nj"]


def test_lines_that_are_not_stored_yet_can_be_read_again(spool: LogSpool) -> None:
    texts = [f"line {number}" for number in range(100)]
    spool.append(texts[:50])
    spool.append(texts[50:])
    assert read_all(spool, 0) == texts
    assert read_all(spool, 17) == texts[17:]
    assert read_all(spool, 99) == texts[99:]


def test_files_are_deleted_when_all_their_lines_are_stored(spool: LogSpool, tmp_path: Path) -> None:
    for number in range(200):
        spool.append([f"line {number}"])
    read_all(spool)
    spool.let_go(200)
    assert len(list((tmp_path / "spool").iterdir())) == 1
    spool.append(["one more"])
    assert read_all(spool, 200) == ["one more"]
    with pytest.raises(AgentError, match="log line 0 is asked for"):
        spool.read(0, max_lines=1, max_bytes=1)


def trimmed(spool: LogSpool) -> int:
    """Fill a spool with 200 lines, of which the service has stored 150; return the number of its oldest line."""
    for number in range(200):
        spool.append([f"line {number}"])
    spool.read(0, max_lines=200, max_bytes=1 << 20)
    spool.let_go(150)
    return spool.oldest_sequence


def test_one_line_takes_the_place_of_removed_lines_that_the_service_has_lost(spool: LogSpool, tmp_path: Path) -> None:
    oldest = trimmed(spool)
    assert 100 < oldest <= 150
    assert spool.close_gap(100) == oldest - 101
    mark, *rest = read_all(spool, oldest - 1)
    assert mark.startswith(f"clary: {oldest - 100} lines were lost here: the service had stored them")
    assert rest == [f"line {number}" for number in range(oldest, 200)]
    spool.append(["later"])
    assert read_all(spool, 200) == ["later"]
    names = sorted(path.name for path in (tmp_path / "spool").iterdir())
    assert names[:2] == [segment_name(100), segment_name(101)]  # the log's numbers, for the reader of a dead agent
    spool.let_go(201)
    assert len(list((tmp_path / "spool").iterdir())) == 1


def test_no_line_is_marked_as_lost_while_it_is_still_here(spool: LogSpool) -> None:
    oldest = trimmed(spool)
    assert spool.close_gap(oldest) == 0
    assert read_all(spool, oldest)[0] == f"line {oldest}"


def test_a_disk_that_refuses_files_does_not_keep_the_lines_after_a_gap(
    spool: LogSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    oldest = trimmed(spool)

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(log_spool.Segment, "create", refuse)
    monkeypatch.setattr(Path, "rename", refuse)
    spool.close_gap(0)
    mark, *rest = read_all(spool, oldest - 1)
    assert mark.startswith(f"clary: {oldest} lines were lost here")
    assert rest == [f"line {number}" for number in range(oldest, 200)]


def test_no_file_is_skipped_when_its_predecessor_is_deleted_during_a_read(spool: LogSpool, tmp_path: Path) -> None:
    texts = [f"line {number:03d}" for number in range(100)]
    for text in texts:
        spool.append([text])
    firsts = sorted(int(path.stem) for path in (tmp_path / "spool").iterdir())
    assert len(firsts) > 3, "whole files of one size lie behind the first"
    assert len(spool.read(0, max_lines=firsts[1], max_bytes=1 << 30)) == firsts[1]
    spool.let_go(firsts[1])
    assert read_all(spool, firsts[1]) == texts[firsts[1] :]


def test_rank_and_time_are_kept_and_times_never_go_back(spool: LogSpool) -> None:
    spool.append(["first"], rank=2, at_ms=2_000)
    spool.append(["second"], at_ms=1_000)
    first, second = spool.read(0, max_lines=2, max_bytes=1000)
    assert (first.rank, first.at_ms) == (2, 2_000)
    assert (second.rank, second.at_ms) == (None, 2_000)


REFUSED = "the disk of this host refused them (No space left on device)"


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every write write five bytes and then fail."""
    real_pwrite = os.pwrite

    def pwrite_on_full_disk(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) > 5:
            return real_pwrite(descriptor, data[:5], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", pwrite_on_full_disk)


def test_a_full_disk_loses_lines_and_the_log_marks_the_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    spool = LogSpool(tmp_path / "spool", clock=clock, memory_bytes=0)
    spool.append(["before"])
    fill_disk(monkeypatch)
    spool.append(["lost", "lost too"])
    monkeypatch.undo()
    spool.append(["lost as well, so that one sentence tells of all"])
    clock.advance(REFUSAL_S)
    spool.append(["after"])
    assert spool.num_lost == 3
    assert read_all(spool) == ["before", f"clary: 3 lines (60 bytes) were lost here: {REFUSED}", "after"]
    spool.close()


def test_the_agents_own_lines_are_kept_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    spool = LogSpool(tmp_path / "spool", clock=clock, memory_bytes=0)
    fill_disk(monkeypatch)
    spool.append(["lost"])
    spool.append(["clary: first"], is_own=True)
    spool.append(["lost too"])
    spool.tell_loss()
    said = [
        f"clary: 1 lines (4 bytes) were lost here: {REFUSED}",
        "clary: first",
        f"clary: 1 lines (8 bytes) were lost here: {REFUSED}",
    ]
    assert read_all(spool) == said
    monkeypatch.undo()
    clock.advance(REFUSAL_S)
    spool.let_go(1)
    spool.append(["after"])
    assert read_all(spool, 1) == [*said[1:], "after"]
    spool.let_go(4)
    assert read_all(spool, 4) == []
    spool.close()


def test_lines_of_a_full_disk_wait_in_memory_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    spool = LogSpool(tmp_path / "spool", clock=clock, memory_bytes=MEMORY_SEGMENT_BYTES + 50_000)
    spool.append(["0"])
    fill_disk(monkeypatch)
    for number in range(1, 6):
        spool.append([str(number)])
        clock.advance(REFUSAL_S / 2)
    assert len(list((tmp_path / "spool").iterdir())) == 1, "a file for every line that is refused"
    monkeypatch.undo()
    clock.advance(REFUSAL_S)
    spool.append(["6"])
    assert read_all(spool) == [str(number) for number in range(7)]
    assert spool.num_lost == 0

    fill_disk(monkeypatch)
    stored = spool.end_sequence
    spool.let_go(stored)
    for _ in range(200):  # memory becomes free as the service stores lines
        spool.append(["x" * 20_000])
        stored += len(read_all(spool, stored)) - 1
        spool.let_go(stored)
    assert spool.num_lost == 0
    for _ in range(50):
        spool.append(["y" * 20_000])
    assert 0 < spool.num_lost < 50
    spool.close()


def test_memory_is_bounded_when_the_disk_stays_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = LogSpool(tmp_path / "spool", clock=FakeClock(), memory_bytes=0)
    fill_disk(monkeypatch)
    for _ in range(100):
        spool.append(["clary: " + "x" * 9_000], is_own=True)
    assert 0 < sum(map(len, read_all(spool))) <= OWN_MEMORY_BYTES
    assert spool.num_lost + spool.end_sequence >= 100
    spool.close()


@pytest.mark.parametrize("max_bytes", [1_000, 20_000])
def test_a_full_spool_drops_the_newest_lines_with_a_notice_until_there_is_room(tmp_path: Path, max_bytes: int) -> None:
    clock = FakeClock()
    spool = LogSpool(tmp_path / "spool", clock=clock, max_bytes=max_bytes)
    texts = [f"line {number:04d}" for number in range(2 * max_bytes // 25)]
    for text in texts:
        spool.append([text])
    num_kept = spool.end_sequence
    assert 0 < num_kept < len(texts)
    assert spool.num_lost == len(texts) - num_kept
    assert sum(path.stat().st_size for path in (tmp_path / "spool").iterdir()) <= max_bytes
    assert read_all(spool) == texts[:num_kept]
    clock.advance(REFUSAL_S)
    spool.append(["still no room"])
    assert spool.end_sequence == num_kept, "a sentence a second would fill the log instead"
    spool.let_go(num_kept)
    clock.advance(REFUSAL_S)
    spool.append(["after"])
    gap, after = read_all(spool, num_kept)
    num_lost = spool.num_lost
    assert after == "after"
    assert gap == (
        f"clary: {num_lost} lines ({9 * (num_lost - 1) + len('still no room')} bytes) were lost here: the spool was"
        f" full (setting log_spool_max_bytes: {max_bytes}); the service took no lines"
    )
    spool.close()


def test_a_full_spool_accepts_the_agents_own_lines(tmp_path: Path) -> None:
    spool = LogSpool(tmp_path / "spool", clock=FakeClock(), max_bytes=100)
    spool.append(["x" * 80])
    spool.append(["y" * 80])
    spool.append(["clary: the end"], is_own=True)
    assert [text[:9] for text in read_all(spool)] == ["x" * 9, "clary: 1 ", "clary: th"]
    spool.close()


def test_a_closed_spool_leaves_no_file_and_accepts_no_line(tmp_path: Path) -> None:
    spool = LogSpool(tmp_path / "spool")
    spool.append(["text"])
    spool.close()
    spool.append(["more"])
    assert list((tmp_path / "spool").iterdir()) == []
    assert spool.end_sequence == 1
