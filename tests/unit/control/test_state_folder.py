"""The state folder: its access rights, its record of a service, and keys that are stable and differ between folders."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from clary.base.errors import ContractError
from clary.base.processes import ProcessId
from clary.control.state_folder import ServiceRecord, StateFolder


@pytest.fixture
def folder(tmp_path):
    folder = StateFolder(tmp_path / "state")
    folder.create()
    return folder


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def record(**changes):
    own = ProcessId.of(os.getpid())
    values = {
        "pid": own.pid,
        "process_started": own.started,
        "url": "http://127.0.0.1:1",
        "tls_url": "",
        "proxy_url": "",
        "region": "us-west-2",
        "version": "0.1.0",
    }
    return ServiceRecord(**{**values, **changes})


def test_other_users_lose_access_even_to_a_folder_that_was_open(tmp_path):
    (tmp_path / "state").mkdir(mode=0o755)
    folder = StateFolder(tmp_path / "state")
    folder.create()
    folder.create()
    assert mode_of(folder.root) == 0o700
    folder.load_secrets()
    assert mode_of(folder.root / "secrets" / "root.json") == 0o600


def test_a_folder_that_can_not_be_created_is_an_error_with_advice(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ContractError, match=r"file.*cannot be made.*CLARY_HOME"):
        StateFolder(tmp_path / "file" / "state").create()


def test_the_record_of_a_service_survives_writing_and_reading(folder):
    assert folder.read_service_record() is None
    folder.write_service_record(record())
    assert folder.read_service_record() == record()
    assert folder.read_service_record().process.is_alive()
    assert sorted(path.name for path in (folder.root / "run").iterdir()) == ["service.copy.json", "service.json"]


@pytest.mark.parametrize("ruin", [lambda path: path.write_bytes(b"\xff\x00"), lambda path: path.unlink()])
def test_either_file_of_the_record_says_where_the_service_is(folder, ruin):
    for name in ("service_record_path", "service_record_copy_path"):
        folder.write_service_record(record())
        ruin(getattr(folder, name))
        assert folder.read_service_record() == record()


def test_the_record_of_a_newer_service_can_be_read(folder):
    folder.write_service_record(record())
    document = json.loads(folder.service_record_path.read_text())
    folder.service_record_path.write_text(json.dumps({**document, "added_later": 1}))
    assert folder.read_service_record() == record()


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"pid": "x"}'])
def test_a_damaged_record_is_an_error_with_its_path(folder, text):
    folder.service_record_path.write_text(text)
    with pytest.raises(ContractError, match=r"run/service\.json does not name a service.*remove the file"):
        folder.read_service_record()


def test_keys_are_created_once_and_differ_between_folders(folder, tmp_path):
    first = folder.load_secrets()
    assert folder.load_secrets() == first
    other = StateFolder(tmp_path / "other")
    other.create()
    (folder.root / "clary.db").touch()  # the service creates this file later
    assert folder.load_secrets() == first
    assert other.load_secrets().secret_access_key != first.secret_access_key


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"access_key_id": "x"}'])
def test_damaged_keys_are_an_error_and_are_not_replaced(folder, text):
    path = folder.root / "secrets" / "root.json"
    path.write_text(text)
    with pytest.raises(ContractError, match=r"root\.json does not hold the keys"):
        folder.load_secrets()
    assert path.read_text() == text


@pytest.mark.parametrize("trace", ["clary.db", "database.json"])
def test_missing_keys_are_not_created_again_where_traces_of_a_service_exist(folder, trace):
    (folder.root / trace).touch()
    with pytest.raises(ContractError, match=rf"root\.json are missing.*{trace}.*clary up --new-keys"):
        folder.load_secrets()
    with pytest.raises(ContractError, match="are missing"):
        folder.read_secrets()
    assert not folder.has_secrets
    assert folder.load_secrets(begins_anew=True) == folder.load_secrets()


def test_new_keys_move_the_old_ones_aside(folder):
    first = folder.load_secrets()
    assert folder.load_secrets(begins_anew=True) != first
    (aside,) = folder.secrets_path.parent.glob("root.json.*.aside")
    assert json.loads(aside.read_text())["master_key"] == first.master_key


def test_a_printed_record_shows_no_key(folder):
    secrets = folder.load_secrets()
    shown = repr(secrets) + repr(secrets.credentials) + repr(secrets.store_credentials)
    for secret in (
        secrets.secret_access_key,
        secrets.admin_token,
        secrets.master_key,
        secrets.store_credentials.secret_access_key,
    ):
        assert secret not in shown


def test_each_attempt_has_its_own_stable_keys(folder):
    secrets = folder.load_secrets()
    first, second = secrets.job_credentials("job/1"), secrets.job_credentials("job/2")
    assert first == secrets.job_credentials("job/1")
    assert first.access_key_id.startswith("CLARYJOB")
    assert secrets.job_secret(first.access_key_id) == first.secret_access_key
    values = {
        first.secret_access_key,
        second.secret_access_key,
        first.access_key_id,
        second.access_key_id,
        secrets.agent_token("job/1"),
        secrets.agent_token("job/2"),
        secrets.store_credentials.secret_access_key,
        secrets.secret_access_key,
    }
    assert len(values) == 8


def test_the_engine_of_the_last_service_is_never_guessed_while_its_record_cannot_be_read(folder, monkeypatch):
    assert folder.read_engine() == "local"
    folder.write_engine("slurm")

    def refuse(path, **_options):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        with pytest.raises(ContractError, match="run/engine: cannot be read now"):
            folder.read_engine()
    assert folder.read_engine() == "slurm"
