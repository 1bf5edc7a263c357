"""The network program as a process: it exits if its parent is gone, and its port check imports few modules."""

import json
import os
import subprocess
import sys

import pytest

from clary.agent.health import network_program
from clary.agent.health.network_doctor import NetworkDoctor
from clary.agent.health.readings import NetworkOrder, Peer
from clary.base.errors import AgentError
from clary.base.plain import to_plain

DEADLINE_S = 30.0


ORDER = NetworkOrder(
    host="algo-1",
    names=("algo-1", "algo-2"),
    address="127.0.0.1",
    interface="lo",
    peers=(Peer(name="algo-2", address="127.0.0.1"),),
    ports=(7777, 7778),
    network_namespace="/nowhere",
)


def test_a_program_whose_parent_is_gone_exits_without_output():
    gone = os.getppid()  # a process other than the parent of the program
    done = subprocess.run(
        [sys.executable, "-m", network_program.__name__, str(gone)],
        input=json.dumps(to_plain(ORDER)),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (network_program._ORPHANED_EXIT_CODE, "", "")


def test_a_network_that_is_gone_raises_an_error_and_logs_nothing(capfd):
    doctor = NetworkDoctor(ORDER)
    try:
        with pytest.raises(AgentError, match="the network of algo-1 was not checked: its network is gone"):
            doctor.port_reading()
    finally:
        doctor.close()
    assert capfd.readouterr() == ("", ""), "a pool's folder stays where an agent's log says something"


def test_the_port_check_does_not_import_the_measurements():
    code = f"import sys, {network_program.__name__}; print(*sys.modules)"
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    imported = set(done.stdout.split())
    assert network_program.__name__ in imported
    assert not imported & {"asyncio", "dataclasses", "typing", "subprocess", "logging"}
