from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from clary.agent.supervisor.log_spool import LogSpool
from clary.contract.errors import AgentError


@pytest.fixture
def spool(tmp_path: Path):
    spool = LogSpool(tmp_path / "spool", segment_bytes=400)
    yield spool
    spool.close()


def read_all(spool: LogSpool, first: int = 0) -> list[str]:
    return [line.text for line in spool.read(first, max_lines=10_000, max_bytes=1 << 30)]


def test_lines_come_back_in_order_across_files(spool: LogSpool, tmp_path: Path) -> None:
    texts = [f"line {number}" for number in range(200)]
    for text in texts:
        spool.append([text], rank=3)
    assert len(list((tmp_path / "spool").iterdir())) > 3
    assert read_all(spool) == texts
    assert spool.end_sequence == 200


def test_both_bounds_of_a_read_hold_but_one_line_always_comes(spool: LogSpool) -> None:
    spool.append(["a" * 10, "b" * 10, "c" * 100, "d"])
    assert [line.text[0] for line in spool.read(0, max_lines=1, max_bytes=1000)] == ["a"]
    assert [line.text[0] for line in spool.read(1, max_lines=10, max_bytes=20)] == ["b"]
    assert [line.text[0] for line in spool.read(2, max_lines=10, max_bytes=20)] == ["c"]
    assert [line.text[0] for line in spool.read(3, max_lines=10, max_bytes=20)] == ["d"]
    assert spool.read(4, max_lines=10, max_bytes=20) == []


def test_lines_that_are_not_stored_yet_can_be_read_again(spool: LogSpool) -> None:
    texts = [f"line {number}" for number in range(100)]
    spool.append(texts[:50])
    spool.append(texts[50:])
    assert read_all(spool, 0) == texts
    assert read_all(spool, 17) == texts[17:]
    assert read_all(spool, 99) == texts[99:]


def test_files_go_when_all_their_lines_are_stored(spool: LogSpool, tmp_path: Path) -> None:
    for number in range(200):
        spool.append([f"line {number}"])
    read_all(spool)
    spool.let_go(200)
    assert len(list((tmp_path / "spool").iterdir())) == 1
    spool.append(["one more"])
    assert read_all(spool, 200) == ["one more"]
    with pytest.raises(AgentError, match="log line 0 is asked for"):
        spool.read(0, max_lines=1, max_bytes=1)


def test_no_file_is_skipped_when_the_one_before_it_goes_just_as_its_last_line_was_read(
    spool: LogSpool, tmp_path: Path
) -> None:
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


def test_a_full_disk_loses_counted_lines_and_nothing_else(spool: LogSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    spool.append(["before"])
    real_pwrite = os.pwrite

    def pwrite_on_full_disk(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) > 5:
            return real_pwrite(descriptor, data[:5], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", pwrite_on_full_disk)
    spool.append(["lost", "lost too"])
    monkeypatch.undo()
    spool.append(["after"])
    assert spool.num_lost == 2
    assert read_all(spool) == ["before", "after"]


def test_a_closed_spool_leaves_no_file_and_takes_no_line(tmp_path: Path) -> None:
    spool = LogSpool(tmp_path / "spool")
    spool.append(["text"])
    spool.close()
    spool.append(["more"])
    assert list((tmp_path / "spool").iterdir()) == []
    assert spool.end_sequence == 1
