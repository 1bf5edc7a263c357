"""Processes that obey orders together: the ranks of one contender, or of several that share processes.

Every rank is `collective_rank`, connected to this process by a socket in the gang's folder. An order is a JSON object
that all ranks get; each answers with one. Between orders ranks sleep, so gangs can take turns on the same cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.collectives.collective_board import make_board
from benchmarks.lines import ROOT
from benchmarks.service import TRAIN_PYTHON
from clary.base.processes import ProcessId, live_descendants

START_LIMIT_S = 120.0
ORDER_LIMIT_S = 300.0
LEAVE_LIMIT_S = 10.0
POLL_S = 0.02
SAID_BYTES = 3000  # of a gang's output, in messages
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none")


class GangError(Exception):
    """A gang did not start, or a rank did not carry out an order; the message names the rank and has its last words."""


class Gang:
    """Running ranks; a context manager that ends all of them.

    Args:
        kind: `torch` ranks hold process groups of torch.distributed, `mpi` ranks are started by mpirun.
        entries: words before the command of each rank, by which it runs on a host of a laboratory network.
        environment: what is added to this process's.
        launcher: of MPI: what starts all ranks at once.
    Raises: GangError if not every rank has come within START_LIMIT_S.
    """

    def __init__(
        self,
        kind: str,
        num_ranks: int,
        *,
        entries: Sequence[Sequence[str]] | None = None,
        environment: dict[str, str] | None = None,
        launcher: Sequence[str] = MPIRUN,
    ) -> None:
        self.kind, self.num_ranks = kind, num_ranks
        self._entries = entries or [()] * num_ranks
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "PYTHONWARNINGS": "ignore::FutureWarning",
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        self._launcher = launcher
        self._folder = tempfile.TemporaryDirectory(prefix="clary-gang-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ranks: list[_Rank] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    @property
    def about(self) -> dict[str, str]:
        """Versions of the software that the ranks run on, as rank 0 reports them."""
        return self._ranks[0].about

    def ask(self, order: dict[str, Any], *, limit_s: float = ORDER_LIMIT_S) -> list[dict[str, Any]]:
        """Give all ranks an order and return their answers in rank order.

        Raises: GangError if a rank refused, ended or has not answered within `limit_s`.
        """
        for rank in self._ranks:
            rank.send(order)
        deadline_s = time.monotonic() + limit_s
        answers: list[dict[str, Any]] = []
        for number, rank in enumerate(self._ranks):
            try:
                answers.append(rank.receive(deadline_s))
            except (OSError, EOFError) as error:
                raise GangError(f"rank {number} of {self.kind} at {order}: {error!r}\n{self._output()}") from error
        refused = [f"rank {number}: {a['error']}" for number, a in enumerate(answers) if "error" in a]
        if refused:
            raise GangError(f"{self.kind} at {order}: {'; '.join(refused)}")
        return answers

    def _start(self) -> None:
        folder = Path(self._folder.name)
        make_board(folder / "board", self.num_ranks)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening, self._log().open("wb") as log:
            listening.bind(str(folder / "orders"))
            listening.listen(self.num_ranks)
            for command in self._commands(folder):
                self._processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=self._environment,
                        cwd=ROOT,
                    )
                )
            self._ranks = self._accept(listening)

    def _commands(self, folder: Path) -> list[list[str]]:
        program = [
            str(TRAIN_PYTHON),
            "-m",
            "benchmarks.collectives.collective_rank",
            self.kind,
            str(folder),
            str(self.num_ranks),
        ]
        if self.kind == "mpi":
            return [[*self._launcher, "-np", str(self.num_ranks), *program]]
        return [[*entry, *program, str(rank)] for rank, entry in enumerate(self._entries)]

    def _accept(self, listening: socket.socket) -> list[_Rank]:
        deadline_s = time.monotonic() + START_LIMIT_S
        listening.settimeout(POLL_S)
        ranks: dict[int, _Rank] = {}
        while len(ranks) < self.num_ranks:
            ended = [process.returncode for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline_s:
                raise GangError(
                    f"{len(ranks)} of {self.num_ranks} ranks of {self.kind} came within {START_LIMIT_S:g} s, "
                    f"processes ended with {ended}: {self._output()}"
                )
            with contextlib.suppress(TimeoutError):
                connection, _ = listening.accept()
                rank = _Rank(connection)
                hello = rank.receive(deadline_s)
                rank.about = hello["about"]
                ranks[hello["rank"]] = rank
        return [ranks[number] for number in range(self.num_ranks)]

    def _log(self) -> Path:
        return Path(self._folder.name) / "output"

    def _output(self) -> str:
        try:
            return self._log().read_bytes()[-SAID_BYTES:].decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _end(self) -> None:
        for rank in self._ranks:
            rank.close()  # the end of its orders is the order to leave
        deadline_s = time.monotonic() + LEAVE_LIMIT_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.0, deadline_s - time.monotonic()) if self._ranks else 0)
        for process in self._processes:
            for pid in [*live_descendants(process.pid), process.pid]:
                if process.poll() is None and (known := ProcessId.of(pid)):
                    print(f"{self.kind}: process {pid} did not leave by itself", file=sys.stderr)
                    known.kill(timeout_s=LEAVE_LIMIT_S)
            process.wait(timeout=LEAVE_LIMIT_S)
        self._folder.cleanup()


class _Rank:
    """The socket to one rank: a JSON object a line in both directions."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unread = b""
        self.about: dict[str, str] = {}

    def send(self, message: dict[str, Any]) -> None:
        self._connection.settimeout(None)
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, deadline_s: float) -> dict[str, Any]:
        while b"\n" not in self._unread:
            self._connection.settimeout(max(0.001, deadline_s - time.monotonic()))
            data = self._connection.recv(1 << 16)
            if not data:
                raise EOFError("it has ended")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        self._connection.close()
