"""The worker of a host, with a parameter server of TensorFlow or MXNet.

    clary_parameter_server.py WORKER COMMAND...

Where: the parameter_server launcher starts it. For TensorFlow with TF_CONFIG, CLARY_PS_TASK (the server's index) and
CLARY_PS_MASTER (host:port of the master; empty on the master's own host). A server never ends by itself: on the
master's host it is killed after the worker has ended, on other hosts after the worker has failed, or has ended and the
master's port is closed. For MXNet with the worker's DMLC_* variables and CLARY_PS_ROLES, the other roles of this host:
`import mxnet` runs a server or a scheduler until its end. Both are killed after the worker. It runs in the user's
environment: Python 3.8 or later, with the standard library and the framework, without clary.
Source: sagemaker-tensorflow-training `training._run_ps`, `_wait_until_master_is_down`; sagemaker-mxnet-training
`training._run_mxnet_process`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

MASTER_POLL_S = 2.0
_POLL_S = 0.1  # interval between checks of the two processes
_CONNECT_S = 5.0
_KILL_WAIT_S = 10.0

# No GPUs: this host's worker uses them.
_SERVER = """
import json, os
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import tensorflow as tf
server_class = getattr(getattr(tf, "distribute", None), "Server", None) or tf.train.Server
cluster_spec = tf.train.ClusterSpec(json.loads(os.environ["TF_CONFIG"])["cluster"])
server_class(cluster_spec, job_name="ps", task_index=int(os.environ["CLARY_PS_TASK"])).join()
"""


def main() -> int:
    """Run server and worker; return the worker's exit code, or -signal; return 1 if a server fails first."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # worker and server receive the signal directly
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for program, variables in _servers():
            servers.append(subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **variables}))
        worker = subprocess.Popen(sys.argv[1:])
        while worker.poll() is None:
            failed = [server.returncode for server in servers if server.poll() not in (None, 0, -signal.SIGTERM)]
            if failed:
                end = f"exit code {failed[0]}" if failed[0] > 0 else f"signal {-failed[0]}"
                print(f"clary: parameter server ended with {end}; the worker is ended", file=sys.stderr)
                worker.kill()
                worker.wait(_KILL_WAIT_S)
                return 1
            time.sleep(_POLL_S)
        code = worker.returncode
        if code == 0 and os.environ.get("CLARY_PS_MASTER"):
            _wait_for_end_of(os.environ["CLARY_PS_MASTER"])
        return code
    finally:
        for server in servers:
            server.kill()
        for server in servers:
            server.wait(_KILL_WAIT_S)


def _servers() -> list[tuple[str, dict[str, str]]]:
    """Return (code, variables) of each process other than the worker."""
    roles = os.environ.get("CLARY_PS_ROLES")
    if roles is None:
        return [(_SERVER, {})]
    return [("import mxnet", {"DMLC_ROLE": role}) for role in roles.split(",")]


def _wait_for_end_of(master: str) -> None:
    """Wait until no process listens at `master`; only the job's time limit bounds the wait."""
    host, _, port = master.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
        except OSError:
            return
        time.sleep(MASTER_POLL_S)


def _end_as(code: int) -> None:
    """End this process in the same way as the worker, so that the job's FailureReason names the same signal."""
    if code >= 0:
        sys.exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    _end_as(main())
