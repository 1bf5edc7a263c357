"""Files that are kept open while their names change: which of them rested until another file replaced them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.held_files import HeldFiles


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldFiles]:
    (tmp_path / "a").write_text("one")
    files = HeldFiles(CheckpointFolder(tmp_path), min_rest_s=0.0)
    files.hold(["a"])
    yield files
    files.release()


def put(tmp_path: Path, text: str) -> None:
    (tmp_path / "new").write_text(text)
    (tmp_path / "new").replace(tmp_path / "a")


def test_a_file_that_another_file_replaced_was_at_rest(held: HeldFiles, tmp_path: Path) -> None:
    assert held.replaced() == {}, "its name still shows it"
    put(tmp_path, "two")
    put(tmp_path, "three")
    assert [facts.size_bytes for facts in held.replaced().values()] == [3]
    assert os.pread(held.descriptors()["a"], 100, 0) == b"one"


def test_a_file_written_to_before_its_replacement_was_not_at_rest(held: HeldFiles, tmp_path: Path) -> None:
    with (tmp_path / "a").open("a") as file:
        file.write(" and more")
    put(tmp_path, "two")
    assert held.replaced() == {}


def test_a_file_written_to_without_growing_was_not_at_rest(held: HeldFiles, tmp_path: Path) -> None:
    with (tmp_path / "a").open("r+b", buffering=0) as file:
        os.utime(tmp_path / "a", ns=(1, 1))
        file.write(b"ONE")
    put(tmp_path, "two")
    assert held.replaced() == {}


@pytest.mark.parametrize("keep", ["move", "link"])
def test_a_renamed_file_is_not_reported(held: HeldFiles, tmp_path: Path, keep: str) -> None:
    if keep == "move":
        (tmp_path / "a").rename(tmp_path / "b")
    else:
        os.link(tmp_path / "a", tmp_path / "b")
    put(tmp_path, "two")
    assert held.replaced() == {}
    put(tmp_path, "three")
    (tmp_path / "b").unlink()
    assert list(held.replaced()) == ["a"], "now it cannot come back"


def test_only_regular_files_are_kept_open_up_to_the_descriptor_limit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").mkdir()
    names = [f"f{number}" for number in range(200)]
    for name in names:
        (tmp_path / name).write_text(name)
    before = len(os.listdir("/proc/self/fd"))
    files = HeldFiles(CheckpointFolder(tmp_path), min_rest_s=0.0)
    try:
        files.hold(["pipe", "link", "folder", "none", *names])
        assert set(files.descriptors()) < set(names)
        assert len(os.listdir("/proc/self/fd")) - before == len(files.descriptors()) <= 64
        files.hold(["f199"])
        assert list(files.descriptors()) == ["f199"]
    finally:
        files.release()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("min_rest_s", "told"), [(3600.0, []), (0.05, ["a"])])
def test_a_replaced_file_is_reported_only_if_it_had_rested_for_min_rest_s(
    tmp_path: Path, min_rest_s: float, told: list[str]
) -> None:
    (tmp_path / "a").write_text("half")
    files = HeldFiles(CheckpointFolder(tmp_path), min_rest_s=min_rest_s)
    try:
        files.hold(["a"])
        time.sleep(0.2)
        (tmp_path / "a").unlink()
        (tmp_path / "a").write_text("half again")
        assert list(files.replaced()) == told
    finally:
        files.release()


def test_a_file_that_a_network_file_system_has_lost_is_closed_and_left_out(tmp_path: Path, monkeypatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    lost = (tmp_path / "a").stat().st_ino
    fstat = os.fstat

    def fail_for_one(descriptor: int) -> os.stat_result:
        if fstat(descriptor).st_ino == lost:
            raise OSError(errno.ESTALE, "Stale file handle")
        return fstat(descriptor)

    before = len(os.listdir("/proc/self/fd"))
    files = HeldFiles(CheckpointFolder(tmp_path), min_rest_s=0.0)
    monkeypatch.setattr("clary.agent.checkpoints.held_files.os.fstat", fail_for_one)
    try:
        files.hold(["a", "b"])
        assert list(files.descriptors()) == ["b"]
        assert len(os.listdir("/proc/self/fd")) == before + 1
    finally:
        files.release()
    assert len(os.listdir("/proc/self/fd")) == before
