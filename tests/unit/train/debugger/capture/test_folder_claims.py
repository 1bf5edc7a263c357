"""Programs that save as the same worker in the same folder: their files are never mixed."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clary.train.debugger.capture.folder_claims import has_ended_well
from clary.train.debugger.capture.writing import Writer
from clary.train.debugger.errors import FolderTaken

LIMIT_S = 60.0
OTHER = """
import sys
from pathlib import Path
from clary.train.debugger.capture.writing import Writer
writer = Writer(Path(sys.argv[1]), "worker_0")
print("claimed", flush=True)
sys.stdin.read()
"""


def other_program(folder: Path) -> subprocess.Popen[str]:
    """Start a program that saves in a folder until it is killed."""
    program = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "claimed\n"
    return program


def kill(program: subprocess.Popen[str]) -> None:
    program.kill()
    program.communicate(timeout=LIMIT_S)


def test_a_second_process_is_refused_only_while_the_first_saves(tmp_path: Path) -> None:
    program = other_program(tmp_path)
    try:
        with pytest.raises(FolderTaken, match=f"process {program.pid} saves in {tmp_path} as worker_0"):
            Writer(tmp_path, "worker_0")
        assert Writer(tmp_path, "worker_1").close(limit_s=LIMIT_S)
    finally:
        kill(program)
    assert Writer(tmp_path, "worker_0").close(limit_s=LIMIT_S)


def test_a_program_that_ended_without_an_error_is_recorded_and_releases_the_folder(tmp_path: Path) -> None:
    assert Writer(tmp_path, "worker_0").close(limit_s=LIMIT_S)
    assert has_ended_well(tmp_path, "worker_0")
    assert not has_ended_well(tmp_path, "worker_1")
    assert Writer(tmp_path, "worker_0").close(limit_s=LIMIT_S), "a program that trains again saves again"


@pytest.mark.parametrize("left", ["", "nonsense", "[]", json.dumps({"program_failed": True}), json.dumps({})])
def test_after_a_failed_or_killed_program_another_may_save(tmp_path: Path, left: str) -> None:
    (tmp_path / "ended").mkdir()
    if left:
        (tmp_path / "ended" / "worker_0.json").write_text(left)
    assert not has_ended_well(tmp_path, "worker_0")
    assert Writer(tmp_path, "worker_0").close(limit_s=LIMIT_S)


def test_a_claim_is_released_though_processes_were_forked_in_between(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    writer = Writer(tmp_path, "worker_0")
    child = os.fork()
    if not child:  # holds the lock's descriptor, like a forked data loader
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        assert writer.close(limit_s=LIMIT_S)
        assert Writer(tmp_path, "worker_0").close(limit_s=LIMIT_S), "the next hook of the same program"
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_an_end_by_an_error_is_distinguished_from_a_good_end(tmp_path: Path) -> None:
    text = "from pathlib import Path; import atexit, sys; from clary.train.debugger.capture.writing import Writer\n"
    text += "atexit.register(Writer(Path(sys.argv[1]), 'worker_0').close, limit_s=60)\n"
    for more, has_failed in (("", False), ("raise ValueError('so it is')", True)):
        subprocess.run([sys.executable, "-c", text + more, str(tmp_path)], capture_output=True, timeout=LIMIT_S)
        assert json.loads((tmp_path / "ended" / "worker_0.json").read_text())["program_failed"] is has_failed


def test_a_lock_that_outlives_its_program_blocks_no_other_program(tmp_path: Path) -> None:
    program = other_program(tmp_path)
    reader = os.open(tmp_path / "collections" / ".worker_0.lock", os.O_RDWR)
    try:
        kill(program)
        fcntl.flock(reader, fcntl.LOCK_EX)  # like a forked data loader
        assert Writer(tmp_path, "worker_0").close(limit_s=LIMIT_S)
    finally:
        os.close(reader)


def test_a_folder_on_a_file_system_without_locks_is_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(handle: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("clary.train.debugger.capture.folder_claims.fcntl.flock", refusing)
    assert Writer(tmp_path, "worker_0").close(limit_s=LIMIT_S)


def test_a_link_in_place_of_a_claim_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "collections").mkdir()
    (tmp_path / "collections" / ".worker_0.lock").symlink_to(tmp_path / "elsewhere")
    assert Writer(tmp_path, "worker_0").close(limit_s=LIMIT_S), "what cannot be claimed is written all the same"
    assert not (tmp_path / "elsewhere").exists()
