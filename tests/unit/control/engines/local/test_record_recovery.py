"""Records of attempts that were damaged or deleted are rebuilt from the running agents only."""

import errno
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from clary.base.errors import EngineError
from clary.base.processes import ProcessId
from clary.control.engines.local import attempt_record, record_recovery
from clary.control.engines.local.agent_processes import AGENT_LOG, MARK_VARIABLE
from clary.control.engines.local.attempt_record import RECORD_FILE

RUINS = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "garbled": lambda path: path.write_bytes(b"\xff\x00nonsense"),
}


@contextmanager
def agent(folder, *, mark="abc"):
    """Yield a process with the command line of the agent of algo-1 in this attempt's folder."""
    host = folder / "algo-1"
    host.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-S", "-c", "input()", "-m", "clary.agent", "--host", "algo-1"]
    environment = {**os.environ, MARK_VARIABLE: mark}
    with (
        (host / AGENT_LOG).open("ab") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment) as process,
    ):
        yield ProcessId.of(process.pid)
        process.stdin.close()


@pytest.mark.parametrize("ruin", RUINS.values(), ids=RUINS)
def test_a_lost_record_is_rebuilt_from_the_running_agents(tmp_path, ruin):
    folder = tmp_path / "job" / "1"
    with agent(folder) as running, agent(tmp_path / "other" / "1"):
        attempt_record.create_record(folder)
        ruin(folder / RECORD_FILE)
        record_recovery.mend(folder)
        found = attempt_record.read_record(folder)
    assert found.agents == {"algo-1": running}
    assert found.mark == "abc"
    assert found.boot_id == attempt_record.boot_id()


def test_a_damaged_file_is_kept_beside_the_new_record(tmp_path):
    (tmp_path / RECORD_FILE).write_text("{")
    record_recovery.mend(tmp_path)
    assert attempt_record.read_record(tmp_path).agents == {}
    assert (tmp_path / f"{RECORD_FILE}{record_recovery.DAMAGED_SUFFIX}").read_text() == "{"


def test_an_attempt_that_has_not_begun_gets_no_record(tmp_path):
    record_recovery.mend(tmp_path)
    record_recovery.mend(tmp_path / "absent")
    assert attempt_record.read_record(tmp_path) is None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM])
def test_a_record_that_cannot_be_read_at_the_moment_is_not_replaced(tmp_path, monkeypatch, number):
    folder = tmp_path / "job" / "1"
    folder.mkdir(parents=True)
    record = attempt_record.create_record(folder, pool="pool_0", master_port=7)

    def refuse(path, **_options):
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        for read in (record_recovery.mend, attempt_record.read_ready):
            with pytest.raises(EngineError) as caught:
                read(folder)
            assert caught.value.retryable
    record_recovery.mend(folder)
    assert attempt_record.read_record(folder) == record
