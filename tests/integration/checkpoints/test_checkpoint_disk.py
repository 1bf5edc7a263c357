"""A full disk under `clary.train.checkpoint`: a small tmpfs, which needs root."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("checkpoint_disk_program.py")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small-disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True, timeout=10)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=10)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own size takes root")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", names(PROGRAM))
def test_functions_on_a_full_disk_pass(name: str, tmp_path: Path, small_disk: Path) -> None:
    places = {"CLARY_TEST_FOLDER": str(tmp_path), "CLARY_TEST_SMALL_DISK": str(small_disk)}
    assert_passed(PROGRAM, name, 2, CLARY_TEST_BACKEND="gloo", **places)
