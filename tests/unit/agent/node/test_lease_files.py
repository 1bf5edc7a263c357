"""Files of leases and of the daemon's folder: written atomically, private, and never another user's."""

import errno
import hashlib
import os
import subprocess
import sys

import pytest

from clary.agent.node.box_folder import BoxConfig, BoxFolder, make_private, read_json, write_json
from clary.agent.node.keeper import EXIT_KEPT, START_FILE, _last_line, keep_lease
from clary.agent.node.lease_files import KeptProcess, LeaseFiles
from clary.base.errors import ContractError
from clary.base.plain import to_plain
from clary.contract.box_protocol import LeaseOrder

LEASE = "lease_0123456789abcdef"
ORDER = LeaseOrder(lease=LEASE, tag="pool_0123456789ab", index=1, job_name="job-7", boot="b" * 64)


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "leases"
    folder.mkdir()
    return LeaseFiles(folder / LEASE)


def test_a_lease_is_recorded_with_a_proof_of_its_own(files):
    record = files.make(ORDER, "boot-1")
    assert files.read_record() == record
    assert (record.tag, record.index, record.boot, record.boot_id) == (ORDER.tag, 1, ORDER.boot, "boot-1")
    proof = files.proof.read_bytes()
    assert record.proof_digest == hashlib.sha256(proof).hexdigest()
    assert len(proof) == 64
    modes = {path.name: path.stat().st_mode & 0o777 for path in files.folder.iterdir()}
    assert modes == {"proof": 0o600, "record.json": 0o600}
    assert files.folder.stat().st_mode & 0o777 == 0o700


def test_each_file_shows_a_phase_of_the_lease(files):
    files.make(ORDER, "boot-1")
    assert (files.read_keeper(), files.read_boot(), files.read_end()) == (None, None, None)
    keeper, boot = KeptProcess(pid=7, started="70"), KeptProcess(pid=8, started="80")
    files.write_keeper(keeper)
    files.write_boot(boot)
    assert (files.read_keeper(), files.read_boot(), files.read_end()) == (keeper, boot, None)
    files.write_end("first")
    files.write_end("second")
    assert files.read_end() == "first"
    assert not files.proof.exists(), "a proof ends with its lease"
    files.remove()
    assert not files.folder.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', '{"lease": 7}', "null"])
def test_damaged_files_count_as_missing(files, text):
    files.make(ORDER, "boot-1")
    for name in ("record.json", "keeper.json", "boot.json", "ended.json"):
        (files.folder / name).write_text(text)
    assert files.read_record() is None
    assert (files.read_keeper(), files.read_boot(), files.read_end()) == (None, None, None)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ESTALE, errno.EACCES])
def test_a_file_that_cannot_be_read_is_not_taken_for_missing(files, monkeypatch, number):
    def refuse(path):
        raise OSError(number, os.strerror(number), str(path))

    files.make(ORDER, "boot-1")
    monkeypatch.setattr("clary.agent.node.lease_files.read_json", refuse)
    for read in (files.read_keeper, files.read_boot, files.read_end):
        with pytest.raises(OSError, match=os.strerror(number)):
            read()
    assert keep_lease(files.folder) == EXIT_KEPT, "another keeper may have recorded itself"
    files.write_end("why")
    monkeypatch.undo()
    assert files.read_end() == "why"


def test_a_record_whose_write_failed_does_not_exist(files, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("clary.agent.node.lease_files.write_json", full)
    with pytest.raises(OSError, match="No space left"):
        files.make(ORDER, "boot-1")
    assert files.read_record() is None


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError):
        make_private(tmp_path / "link")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError):
        make_private(tmp_path / "real")


def test_a_folder_open_to_others_is_made_private(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    make_private(tmp_path / "open")
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o700


def test_settings_are_read_as_they_were_written(tmp_path):
    folder = BoxFolder(tmp_path)
    config = BoxConfig(name="box1", url="https://head:4571", machine="m" * 64)
    write_json(folder.config, to_plain(config))
    assert folder.read_config() == config
    assert folder.scratch(config) == tmp_path / "scratch"
    folder.config.write_text("{")
    with pytest.raises(ContractError):
        folder.read_config()
    with pytest.raises(ContractError):
        read_json(folder.config)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (
            "print('one'); print('clary boot: Failed: no route'); print(); raise SystemExit(1)",
            ": clary boot: Failed: no route",
        ),
        ("raise SystemExit(1)", ""),
        ("print('x' * 9000); raise SystemExit(1)", ": " + "x" * 300),
    ],
)
def test_the_reason_of_an_end_has_the_last_line_of_a_failed_boot(files, program, why):
    files.make(ORDER, "boot-1")
    write_json(files.folder / START_FILE, {"command": [sys.executable, "-c", program]})
    keeping = (
        "import sys, pathlib; from clary.agent.node.keeper import keep_lease; keep_lease(pathlib.Path(sys.argv[1]))"
    )
    with files.output.open("wb") as output:
        subprocess.run(
            [sys.executable, "-c", keeping, str(files.folder)], stdout=output, stderr=output, check=True, timeout=30
        )
    assert files.read_end() == f"its agent ended with exit code 1{why}"


def test_a_pipe_in_the_place_of_the_output_does_not_keep_a_lease(files):
    files.make(ORDER, "boot-1")
    os.mkfifo(files.output)
    assert _last_line(files.output) == ""
