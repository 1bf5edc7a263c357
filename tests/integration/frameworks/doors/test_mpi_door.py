"""Attacks on the port by which mpirun starts its daemons on the other hosts of a job (`clary_mpi.py serve`)."""

import json
import os
import subprocess
import sys
import time

import pytest
from strangers import Knocking, is_hung_up_on, listening_places, peak_bytes, silent

from clary.agent.launchers.shim_files import MPI_SHIM, SHIMS_FOLDER

pytestmark = [pytest.mark.timeout(120)]

SECRET = "of the attempt"
HANDSHAKE_S = 30.0  # limit of the shim for the handshake
MIB = 1 << 20
PROOFS = 3  # most lines that a stranger receives: a nonce and a proof


@pytest.fixture
def server():
    """The server that every host but the first runs; the kernel chooses its port."""
    script = "import clary_mpi; clary_mpi.Server('127.0.0.1', 0, secret=clary_mpi._secret()).run()"
    environment = {"PYTHONPATH": SHIMS_FOLDER, "CLARY_MPI_SECRET": SECRET, "PATH": os.environ["PATH"]}
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL, env=environment)
    deadline = time.monotonic() + 30
    while not listening_places(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()


def run_there(server, command):
    """Run a command on the server's host as mpirun does."""
    (place,) = listening_places(server.pid)
    environment = {
        "CLARY_MPI_SECRET": SECRET,
        "CLARY_MPI_PEERS": json.dumps({"algo-2": list(place)}),
        "PATH": os.environ["PATH"],
    }
    words = [sys.executable, MPI_SHIM, "rsh", "algo-2", command]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.long(20)
def test_commands_of_mpirun_run_during_attacks_and_no_command_of_a_stranger_runs(server):
    before = peak_bytes(server.pid)
    knocking = Knocking(server.pid)
    try:
        knocking.await_places(1)
        deadline = time.monotonic() + 40
        while len(knocking.answers) < 5:
            assert time.monotonic() < deadline, knocking.failures
            time.sleep(0.1)
        for number in range(3):
            done = run_there(server, f"echo {number}")
            assert (done.returncode, done.stdout) == (0, f"{number}\n"), done.stderr
    finally:
        knocking.close()
    assert {failure.partition(":")[0] for failure in knocking.failures} <= {"forged_hello"}, "too short for a line"
    assert all(answer.count(b"\n") <= PROOFS for answer in knocking.answers if answer), knocking.answers
    assert peak_bytes(server.pid) - before < 64 * MIB


@pytest.mark.long(30)
def test_silent_connections_are_closed_after_the_handshake_limit(server):
    (place,) = listening_places(server.pid)
    quiet = silent(place)
    assert len(quiet) == 100
    assert run_there(server, "true").returncode == 0
    assert all(is_hung_up_on(sock, HANDSHAKE_S + 15) for sock in quiet)
    for sock in quiet:
        sock.close()
