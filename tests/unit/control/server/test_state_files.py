"""Files by which clients find the service: the service writes them again after all kinds of damage."""

import os

import pytest

from clary.base.processes import ProcessId
from clary.control.server.state_files import mend_engine, mend_files
from clary.control.state_folder import ServiceRecord, StateFolder, read_record_file

RUINS = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "halved": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbled": lambda path: path.write_bytes(b"\xff\x00nonsense"),
}


@pytest.fixture
def folder(tmp_path):
    folder = StateFolder(tmp_path / "state")
    folder.create()
    return folder


def record():
    own = ProcessId.of(os.getpid())
    return ServiceRecord(
        pid=own.pid,
        process_started=own.started,
        url="http://127.0.0.1:1",
        tls_url="",
        proxy_url="",
        region="us-west-2",
        version="1",
    )


@pytest.mark.parametrize("ruin", RUINS.values(), ids=RUINS)
def test_what_is_damaged_under_the_service_is_written_again(folder, ruin):
    secrets = folder.load_secrets()
    folder.write_service_record(record())
    (folder.root / "clary.db").touch()
    for path in (folder.service_record_path, folder.service_record_copy_path, folder.secrets_path):
        ruin(path)
        mend_files(folder, record(), secrets)
        assert read_record_file(folder.service_record_path) == record()
        assert read_record_file(folder.service_record_copy_path) == record()
        assert folder.read_secrets() == secrets


def test_whole_keys_that_a_user_put_into_the_folder_are_kept(folder, tmp_path):
    other = StateFolder(tmp_path / "other")
    other.create()
    put = other.load_secrets()
    secrets = folder.load_secrets()
    folder.write_secrets(put)
    mend_files(folder, record(), secrets)
    assert folder.read_secrets() == put


@pytest.mark.parametrize("ruin", RUINS.values(), ids=RUINS)
def test_the_name_of_the_engine_is_written_again(folder, ruin):
    folder.write_engine("slurm")
    ruin(folder.engine_path)
    mend_engine(folder, "slurm")
    assert folder.read_engine() == "slurm"
