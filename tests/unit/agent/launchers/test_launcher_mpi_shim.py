"""mpirun's remote commands: output, exit codes, secrets, and the end of processes with their leader."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clary.agent.launchers.shim_files import MPI_SHIM, SHIMS_FOLDER

SECRET = "secret-of-the-attempt"
DRIVER = """
import sys
import clary_mpi
server = clary_mpi.Server("127.0.0.1", 0, secret=clary_mpi._secret())
print(server.port, flush=True)
sys.exit(server.run())
"""


class RemoteHost:
    """The server process that every host but the first runs."""

    def __init__(self) -> None:
        environment = {"PYTHONPATH": SHIMS_FOLDER, "CLARY_MPI_SECRET": SECRET, "PATH": os.environ["PATH"], "HERE": "b"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def environment(self, secret: str = SECRET) -> dict[str, str]:
        peers = json.dumps({"algo-2": ["127.0.0.1", self.port]})
        return {"CLARY_MPI_SECRET": secret, "CLARY_MPI_PEERS": peers, "PATH": os.environ["PATH"]}

    def end(self) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=20)
        return self.process.returncode, stderr


@pytest.fixture
def remote() -> Iterator[RemoteHost]:
    host = RemoteHost()
    yield host
    if host.process.poll() is None:
        host.process.kill()
    host.process.communicate()


def rsh(remote: RemoteHost, *words: str, secret: str = SECRET) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, MPI_SHIM, "rsh", *words]
    return subprocess.run(command, env=remote.environment(secret), capture_output=True, text=True, timeout=20)


def lead(remote: RemoteHost, script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, MPI_SHIM, "lead", "/bin/sh", "-c", script], env=remote.environment())


def wait_for(condition, *, timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not come true in time"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_command_runs_on_the_other_host_with_its_environment(remote: RemoteHost) -> None:
    done = rsh(remote, "-x", "algo-2", "PATH=/bin:$PATH ; export PATH ;", "echo out $HERE; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out b\n", "err\n")


def test_large_and_binary_output_arrives_whole(remote: RemoteHost) -> None:
    done = rsh(remote, "algo-2", "head -c 3000000 /dev/zero | tr '\\0' 'x'")
    assert done.stdout == "x" * 3_000_000


def test_a_signal_that_ends_a_command_is_reported_as_a_shell_does(remote: RemoteHost) -> None:
    assert rsh(remote, "algo-2", "kill -9 $$").returncode == 137


def test_a_client_without_the_secret_is_refused(remote: RemoteHost, tmp_path: Path) -> None:
    done = rsh(remote, "algo-2", f"touch {tmp_path}/x", secret="wrong")
    assert done.returncode != 0
    assert "refused" in done.stderr
    assert not (tmp_path / "x").exists()
    assert rsh(remote, "algo-2", "true").returncode == 0, "the server lives on"


def test_unknown_host_is_named(remote: RemoteHost) -> None:
    done = rsh(remote, "algo-9", "true")
    assert done.returncode == 255
    assert "algo-9" in done.stderr


def test_the_leader_announces_its_end_and_returns_mpiruns_exit_code(remote: RemoteHost) -> None:
    leader = lead(remote, "exit 3")
    assert leader.wait(20) == 3
    assert remote.end() == (0, "")


def test_daemon_left_in_the_background_is_waited_for(remote: RemoteHost, tmp_path: Path) -> None:
    daemon = f"(setsid sh -c 'sleep 0.5; touch {tmp_path}/done' >/dev/null 2>&1 &)"
    leader = lead(remote, f'{sys.executable} {MPI_SHIM} rsh algo-2 "{daemon}"')
    assert leader.wait(20) == 0
    assert remote.end()[0] == 0
    assert (tmp_path / "done").exists()


def test_loss_of_the_leader_ends_everything_on_the_host(remote: RemoteHost, tmp_path: Path) -> None:
    daemon = f"(setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 300' >/dev/null 2>&1 &)"
    leader = lead(remote, f'{sys.executable} {MPI_SHIM} rsh algo-2 "{daemon}"; touch {tmp_path}/up; exec sleep 1')
    wait_for(lambda: (tmp_path / "up").exists() and (tmp_path / "pid").exists())
    pid = int((tmp_path / "pid").read_text())
    assert is_running(pid)
    leader.kill()
    leader.wait()
    code, stderr = remote.end()
    assert code == 1
    assert "first host is gone" in stderr
    wait_for(lambda: not is_running(pid))


def test_command_whose_caller_goes_away_is_ended(remote: RemoteHost, tmp_path: Path) -> None:
    caller = subprocess.Popen(
        [sys.executable, MPI_SHIM, "rsh", "algo-2", f"echo $$ > {tmp_path}/pid; exec sleep 300"],
        env=remote.environment(),
    )
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip() != "")
    pid = int((tmp_path / "pid").read_text())
    caller.kill()
    caller.wait()
    wait_for(lambda: not is_running(pid))


def test_server_survives_sigterm_so_that_ranks_have_their_grace(remote: RemoteHost) -> None:
    leader = lead(remote, f"{sys.executable} {MPI_SHIM} rsh algo-2 true; kill -TERM {remote.process.pid}; sleep 0.2")
    assert leader.wait(20) == 0
    assert remote.end() == (0, "")


def test_daemons_of_mpirun_are_started_with_stop_signals_blocked(remote: RemoteHost) -> None:
    done = rsh(remote, "algo-2", "grep SigBlk /proc/self/status")
    assert int(done.stdout.split()[1], 16) == 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1)
