"""Records of attempts that were damaged or deleted are rebuilt from the running agents only."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

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
