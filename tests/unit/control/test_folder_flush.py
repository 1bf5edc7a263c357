"""Files of the object store forced to the disk: which files, how many threads, and disks that fail or hang."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clary.control.folder_flush import FolderFlush


class Disk:
    """Counts calls of fsync by name, and can hold or refuse them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.num_active = self.most_active = 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: OSError | None = None

    def fsync(self, descriptor: int) -> None:
        self.num_active += 1
        self.most_active = max(self.most_active, self.num_active)
        self.names.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        self.gate.wait(10)
        self.num_active -= 1
        if self.error is not None:
            raise self.error

    def told(self) -> list[str]:
        names, self.names = sorted(self.names), []
        return names


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    yield disk
    disk.gate.set()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "objects"
    (folder / "filer").mkdir(parents=True)
    for name in ("1.dat", "1.idx", "filer/log"):
        write(folder / name, b"first")
    return folder


def write(path: Path, data: bytes, *, age_s: float = 60) -> None:
    """Append to a file; `age_s` is how long ago that was."""
    with path.open("ab") as file:
        file.write(data)
    os.utime(path, (time.time() - age_s,) * 2)


async def test_only_files_that_have_changed_are_flushed_and_the_folders_of_new_files(folder: Path, disk: Disk) -> None:
    flush = FolderFlush(folder)
    await flush.flush("results")
    assert disk.told() == ["1.dat", "1.idx", "filer", "log", "objects"]
    await flush.flush("results")
    assert disk.told() == []
    write(folder / "1.dat", b"more")
    await flush.flush("results")
    assert disk.told() == ["1.dat"]
    write(folder / "filer" / "log2", b"new")
    (folder / "filer" / "log").unlink()
    await flush.flush("results")
    assert disk.told() == ["filer", "log2"]


async def test_a_file_that_has_just_changed_is_flushed_again(folder: Path, disk: Disk) -> None:
    flush = FolderFlush(folder)
    write(folder / "1.dat", b"", age_s=0.0)
    await flush.flush("results")
    assert "1.dat" in disk.told()
    await flush.flush("results")
    assert disk.told() == ["1.dat"]
    write(folder / "1.dat", b"", age_s=-3600.0)  # the clock was set back
    for _ in range(2):
        await flush.flush("results")
        assert disk.told() == ["1.dat"]


async def test_links_pipes_and_missing_folders_are_left_alone(folder: Path, disk: Disk, tmp_path: Path) -> None:
    write(tmp_path / "other", b"of somebody else")
    (folder / "link").symlink_to(tmp_path / "other")
    os.mkfifo(folder / "pipe")
    await FolderFlush(folder).flush("results")
    assert disk.told() == ["1.dat", "1.idx", "filer", "log", "objects"]
    await FolderFlush(tmp_path / "missing").flush("results")
    assert disk.told() == []


async def test_callers_share_a_flush_that_begins_after_their_call(folder: Path, disk: Disk) -> None:
    flush = FolderFlush(folder)
    disk.gate.clear()
    first = asyncio.create_task(flush.flush("results"))
    while not disk.names:
        await asyncio.sleep(0.001)
    write(folder / "1.dat", b"after the first flush has passed this file", age_s=10)
    write(folder / "2.dat", b"new", age_s=10)
    others = [asyncio.create_task(flush.flush(f"results {number}")) for number in range(20)]
    await asyncio.sleep(0.02)
    assert not any(task.done() for task in (first, *others))
    disk.gate.set()
    await asyncio.gather(first, *others)
    assert "2.dat" in disk.told()
    assert disk.most_active == 1
    assert flush._flushed.keys() >= {str(folder / "2.dat")}


async def test_a_disk_that_hangs_holds_nobody_for_longer_than_the_limit(
    folder: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    flush = FolderFlush(folder, limit_s=0.1)
    num_threads = threading.active_count()
    disk.gate.clear()
    began_s = time.monotonic()
    for number in range(5):
        await flush.flush(f"job {number}")
    assert time.monotonic() - began_s < 1.0, "later callers do not wait once more for a disk that hangs"
    assert "job 4: files below" in caplog.text
    assert "not on the disk within 0.1 s" in caplog.text
    assert threading.active_count() <= num_threads + 1
    disk.gate.set()
    while flush._running is not None or flush._next is not None:
        await asyncio.sleep(0.001)
    await flush.flush("job 5")
    assert "job 5" not in caplog.text


async def test_a_disk_that_fails_is_told_and_the_file_is_tried_again(
    folder: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    flush = FolderFlush(folder)
    disk.error = OSError(5, "Input/output error")
    await flush.flush("job a: its results")
    assert "job a: its results" in caplog.text
    assert "Input/output error" in caplog.text
    disk.error = None
    disk.told()
    await flush.flush("job b")
    assert disk.told() == ["1.dat", "1.idx", "filer", "log", "objects"]


async def test_a_flush_that_nobody_waits_for_ends_by_itself(folder: Path, disk: Disk) -> None:
    flush = FolderFlush(folder)
    flush.begin("checkpoints")
    flush.begin("checkpoints")
    await flush.flush("results")
    assert disk.told() == ["1.dat", "1.idx", "filer", "log", "objects"]
