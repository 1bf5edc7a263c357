"""A parameter server next to a worker: the order in which they end."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from clary.agent.launchers.shim_files import PARAMETER_SERVER_SHIM

FAKE_TENSORFLOW = """
import os, pathlib, time
class train:
    class ClusterSpec:
        def __init__(self, cluster): self.cluster = cluster
class distribute:
    class Server:
        def __init__(self, spec, job_name, task_index):
            facts = [sorted(spec.cluster), job_name, task_index, os.environ["CUDA_VISIBLE_DEVICES"], os.getpid()]
            path = pathlib.Path(os.environ["FACTS"])
            path.with_suffix(".new").write_text(repr(facts))
            path.with_suffix(".new").rename(path)
        def join(self):
            if os.environ.get("FAIL"): raise OSError("port in use")
            time.sleep(300)
"""
WAIT_FOR_SERVER = "import os, time\nwhile not os.path.exists(os.environ['FACTS']): time.sleep(0.01)\n"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tensorflow.py").write_text(FAKE_TENSORFLOW)
    config = {"cluster": {"master": ["a:1"], "ps": ["a:2"], "worker": ["b:1"]}, "task": {"type": "master", "index": 0}}
    return {
        "PYTHONPATH": str(tmp_path),
        "FACTS": str(tmp_path / "facts"),
        "TF_CONFIG": json.dumps(config),
        "CLARY_PS_TASK": "0",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PATH": os.environ["PATH"],
    }


def start(environment: dict[str, str], worker: str) -> subprocess.Popen[str]:
    command = [sys.executable, PARAMETER_SERVER_SHIM, sys.executable, "-c", worker]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_server_ends_with_the_worker_of_the_master(environment: dict[str, str]) -> None:
    process = start(environment, WAIT_FOR_SERVER + "raise SystemExit(5)")
    process.communicate(timeout=20)
    assert process.returncode == 5
    *facts, pid = eval(Path(environment["FACTS"]).read_text())
    assert facts == [["master", "ps", "worker"], "ps", 0, ""]
    assert not Path(f"/proc/{pid}").exists()


def test_other_hosts_keep_their_server_until_the_master_is_gone(environment: dict[str, str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        environment["CLARY_PS_MASTER"] = f"127.0.0.1:{master.getsockname()[1]}"
        process = start(environment, WAIT_FOR_SERVER)
        called = threading.Event()
        threading.Thread(target=lambda: (master.accept()[0].close(), called.set()), daemon=True).start()
        assert called.wait(20), "the host is expected to look after the master"
        assert process.poll() is None
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_server_that_fails_ends_the_worker(environment: dict[str, str]) -> None:
    process = start({**environment, "FAIL": "1"}, "import time; time.sleep(300)")
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "parameter server ended with exit code 1" in stderr


def test_a_worker_that_a_signal_ends_leaves_the_signal_as_the_hosts_own_end(environment: dict[str, str]) -> None:
    process = start(environment, WAIT_FOR_SERVER + "os.kill(os.getpid(), 9)")
    process.communicate(timeout=20)
    assert process.returncode == -9
    *_, pid = eval(Path(environment["FACTS"]).read_text())
    assert not Path(f"/proc/{pid}").exists()
