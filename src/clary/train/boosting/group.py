"""The hosts that train one model together: xgboost's own collective operations, and its tracker on the first host.

Where: `training` reduces by it whatever all hosts have to know; xgboost itself sums the histograms of its trees. One
host alone needs no tracker and no connection. Source: xgboost's documentation, "Collective" and "Tracker".
"""

from __future__ import annotations

import inspect
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xgboost

from clary.train.boosting.errors import UserMistake

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FIRST_VERSION = (1, 7)  # of xgboost with the module `collective`
_FIRST_NATIVE = (2, 1)  # of xgboost whose tracker is not written in Python
# Hosts that have read their data wait for those that still read; a host that fails ends the attempt of all.
_JOIN_TIMEOUT_S = 3600
_TRACKER_TIMEOUT_S = 300  # until the first host's program, which starts at the same time, has imported xgboost
_ASK_TIMEOUT_S = 10.0
_RETRY_S = 0.2
_MAX_DIGITS = 8
_END_TIMEOUT_S = 60


class Group:
    """One host's part in the group.

    Args:
        hosts: names of all hosts, as resourceconfig.json orders them.
        own: this host's name.
    """

    def __init__(self, hosts: Sequence[str], own: str) -> None:
        self._hosts = tuple(hosts) or (own,)
        self._own = own
        self._tracker: Any = None
        self._is_joined = False

    @property
    def size(self) -> int:
        """Number of hosts."""
        return len(self._hosts)

    @property
    def is_first(self) -> bool:
        """Whether this host has rank 0: it prints the metrics and writes checkpoints and model."""
        return not self._is_joined or int(_collective().get_rank()) == 0

    def listen(self, environ: Mapping[str, str]) -> None:
        """Start the tracker if this is the first host of several.

        Args:
            environ: MASTER_ADDR and MASTER_PORT, which are the same on all hosts.
        Raises: UserMistake for an xgboost without collective operations, OSError if the port is taken.
        """
        if self.size == 1:
            return
        if _version() < _FIRST_VERSION:
            raise UserMistake(
                f"the job's environment has xgboost {xgboost.__version__}, which trains on one host; {self.size} hosts "
                "need 1.7 or newer"
            )
        if self._own != self._hosts[0]:
            return
        from xgboost.tracker import RabitTracker

        address = socket.gethostbyname(environ["MASTER_ADDR"])
        options: dict[str, Any] = {"n_workers": self.size, "host_ip": address, "port": _free_port(address)}
        if "sortby" in inspect.signature(RabitTracker).parameters:
            options["sortby"] = "task"
        self._tracker = RabitTracker(**options)
        is_native = _version() >= _FIRST_NATIVE
        self._tracker.start(*(() if is_native else (self.size,)))
        # xgboost 2.1 chooses a port of its own, whatever it is given.
        port = self._tracker.worker_args()["dmlc_tracker_port"] if is_native else self._tracker.port
        listening = socket.create_server((address, int(environ["MASTER_PORT"])), backlog=self.size)
        threading.Thread(target=_tell_port, args=(listening, port), daemon=True).start()

    def join(self, environ: Mapping[str, str]) -> None:
        """Connect to all other hosts; return once each has called it.

        Args:
            environ: as for `listen`.
        Raises: xgboost's own error without them in _JOIN_TIMEOUT_S; UserMistake if the first host's program does not
            answer.
        """
        if self.size == 1:
            return
        address = socket.gethostbyname(environ["MASTER_ADDR"])
        port = _ask_port(address, int(environ["MASTER_PORT"]), deadline_s=time.monotonic() + _TRACKER_TIMEOUT_S)
        if _version() >= _FIRST_NATIVE:
            arguments: dict[str, Any] = {
                "dmlc_communicator": "rabit",
                "dmlc_tracker_uri": address,
                "dmlc_tracker_port": port,
                "dmlc_task_id": self._own,
                "dmlc_timeout": _JOIN_TIMEOUT_S,
            }
        else:
            arguments = {
                "DMLC_TRACKER_URI": address,
                "DMLC_TRACKER_PORT": port,
                "DMLC_TASK_ID": self._own,
                "DMLC_NUM_WORKER": self.size,
            }
        _collective().init(**arguments)
        self._is_joined = True

    def leave(self) -> None:
        """Disconnect after the training; the first host waits until all have."""
        if not self._is_joined:
            return
        self._is_joined = False
        _collective().finalize()
        if self._tracker is None:
            return
        if _version() >= _FIRST_NATIVE:
            self._tracker.wait_for(timeout=_END_TIMEOUT_S)
        else:
            self._tracker.thread.join(_END_TIMEOUT_S)

    def total(self, values: NDArray[Any] | Sequence[float]) -> NDArray[Any]:
        """Return the sum over all hosts of an array of shape [n] as float64; n is the same on all hosts."""
        values = np.asarray(values, dtype=np.float64)
        return np.asarray(_collective().allreduce(values, _collective().Op.SUM)) if self._is_joined else values

    def largest(self, value: int) -> int:
        """Return the largest value of all hosts."""
        if not self._is_joined:
            return value
        return int(_collective().allreduce(np.array([float(value)]), _collective().Op.MAX)[0])

    def of_first(self, content: bytes) -> bytes:
        """Return the first host's bytes; the others' are ignored.

        A sum, to which the other hosts add zeros: xgboost's own broadcast unpickles what it gets, and its tracker lets
        every client in that reaches it.
        """
        if not self._is_joined:
            return content
        num_bytes = int(self.total([float(len(content)) if self.is_first else 0.0])[0])
        values = np.zeros(num_bytes, np.uint8)
        if self.is_first:
            values[:] = np.frombuffer(content, np.uint8)
        return np.asarray(_collective().allreduce(values, _collective().Op.SUM)).tobytes() if num_bytes else b""


def leave_at_once(message: str, *, exit_code: int) -> None:
    """End the process without waiting for hosts that may have failed too.

    xgboost's tracker would keep the interpreter until all hosts have left.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(2, f"{message}\n".encode())
    os._exit(exit_code)


def _free_port(address: str) -> int:
    with socket.socket() as trial:
        trial.bind((address, 0))
        return int(trial.getsockname()[1])


def _tell_port(listening: socket.socket, port: int) -> None:
    """Send the tracker's port over each new connection, until the process ends."""
    while True:
        try:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(_ASK_TIMEOUT_S)
                connection.sendall(str(port).encode())
        except OSError:  # of one connection
            time.sleep(_RETRY_S)


def _ask_port(address: str, port: int, *, deadline_s: float) -> int:
    """Return the tracker's port, told by the first host at MASTER_PORT.

    Args:
        address: of the first host.
        port: MASTER_PORT.
        deadline_s: by the monotonic clock.
    Raises: UserMistake at the deadline.
    """
    problem = "no answer"
    while time.monotonic() < deadline_s:
        try:
            with socket.create_connection((address, port), timeout=_ASK_TIMEOUT_S) as connection:
                told = b""
                while piece := connection.recv(_MAX_DIGITS + 1 - len(told)):
                    told += piece
            if told.isdigit() and len(told) <= _MAX_DIGITS:
                return int(told)
            problem = f"{told[:_MAX_DIGITS]!r} instead of a port"
        except OSError as error:
            problem = str(error)
        time.sleep(_RETRY_S)
    raise UserMistake(f"the first host's program at {address}:{port} did not send its tracker's port: {problem}")


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in xgboost.__version__.split(".")[:2])


def _collective() -> Any:
    from xgboost import collective  # not in releases before 1.7, which train on one host

    return collective
