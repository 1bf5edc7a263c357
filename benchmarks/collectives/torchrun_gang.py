"""Two `torchrun` agents with two ranks each that meet on this machine and all_reduce over gloo: the peer of a gang.

What elastic launchers promise stands in torchrun's own words: when a worker fails, all workers are stopped, and with
restarts left started again. The two agents stand for two hosts; a c10d store in the first one is their rendezvous.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from benchmarks.service import TRAIN_PYTHON, free_port
from clary.base.processes import ProcessId
from clary.control.engines.local import killing

NUM_AGENTS, RANKS_PER_AGENT = 2, 2
START_TIMEOUT_S = 90.0
POLL_S = 0.02
_RANK_FILE = re.compile(r"\d+-\d+")  # a script may keep others beside them
SCRIPT = """import os, pathlib, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
values = torch.ones(1024)
while True:
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    folder = pathlib.Path(sys.argv[1])
    (folder / f"{os.environ['GROUP_RANK']}-{os.environ['LOCAL_RANK']}").write_text(str(os.getpid()))
    time.sleep(0.01)
"""


class TorchrunGang:
    """A running gang; a context manager that leaves nothing behind.

    Raises: SystemExit if not every rank has reduced something within START_TIMEOUT_S.
    """

    def __init__(self, script: str = SCRIPT, *, max_restarts: int = 0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="clary-torchrun-")
        self._max_restarts = max_restarts
        self._root = root = Path(self._folder.name)
        (root / "loop.py").write_text(script)
        (root / "ranks").mkdir()
        self._log = (root / "torchrun.log").open("wb")
        self._port = free_port()
        self._agents = [self._start_agent(index) for index in range(NUM_AGENTS)]
        try:
            self._ranks = self._wait_for_ranks(root)
        except BaseException:
            self.__exit__()
            raise
        self._processes = [self._all_of(index) for index in range(NUM_AGENTS)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for index in range(NUM_AGENTS):
            for process in self._all_of(index):
                process.kill(timeout_s=5)
        for ranks in getattr(self, "_processes", []):
            for process in ranks:
                process.kill(timeout_s=5)
        for agent in self._agents:
            agent.wait(timeout=5)
        self._log.close()
        self._folder.cleanup()

    def kill_rank(self) -> float:
        """Kill the last rank of the second host; return when, in seconds of `time.monotonic`."""
        died_at_s = time.monotonic()
        os.kill(self._ranks[f"1-{RANKS_PER_AGENT - 1}"], signal.SIGKILL)
        return died_at_s

    def kill_host(self) -> float:
        """Kill everything of the second host at once; return when."""
        died_at_s = time.monotonic()
        for process in self._processes[1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return died_at_s

    def kill_agent(self) -> float:
        """Kill the second `torchrun` alone; return when."""
        died_at_s = time.monotonic()
        self._agents[1].send_signal(signal.SIGKILL)
        return died_at_s

    def freeze_agent(self) -> float:
        """Stop the second `torchrun` alone, as if it hung; return when."""
        died_at_s = time.monotonic()
        self._agents[1].send_signal(signal.SIGSTOP)
        return died_at_s

    def watch_the_end(self, died_at_s: float, *, limit_s: float) -> float | None:
        """Return when no process of either host was left, None if one still is after `limit_s`."""
        while time.monotonic() < died_at_s + limit_s:
            for agent in self._agents:
                agent.poll()  # reaps it
            if not any(process.is_alive() for processes in self._processes for process in processes):
                return time.monotonic() - died_at_s
            time.sleep(POLL_S)
        return None

    def replace_host(self) -> None:
        """Start the second agent again as soon as it has ended, as a service that watches over hosts would."""
        self._agents[1].wait(timeout=5)
        self._agents[1] = self._start_agent(1)

    def has_given_up(self) -> bool:
        """Whether the first agent, which was never touched, has ended."""
        return self._agents[0].poll() is not None

    def start_anew(self) -> None:
        """Start both agents again, once the first has ended."""
        for process in self._all_of(1):
            process.kill(timeout_s=5)
        for agent in self._agents:
            agent.wait(timeout=5)
        self._port = free_port()
        self._agents = [self._start_agent(index) for index in range(NUM_AGENTS)]

    def said(self) -> str:
        """Return the output of agents and ranks so far."""
        return (self._root / "torchrun.log").read_text(errors="replace")

    def _start_agent(self, index: int) -> subprocess.Popen[bytes]:
        command = [
            *(str(TRAIN_PYTHON), "-m", "torch.distributed.run"),
            *(f"--nnodes={NUM_AGENTS}", f"--nproc-per-node={RANKS_PER_AGENT}", f"--node-rank={index}"),
            *(f"--max-restarts={self._max_restarts}", "--rdzv-backend=c10d", "--rdzv-id=bench"),
            f"--rdzv-endpoint=127.0.0.1:{self._port}",
            *(f"--rdzv-conf=is_host={int(index == 0)}", "--local-addr=127.0.0.1"),
            *(str(self._root / "loop.py"), str(self._root / "ranks")),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, env=environment)

    def _wait_for_ranks(self, root: Path) -> dict[str, int]:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            found = [path for path in (root / "ranks").iterdir() if _RANK_FILE.fullmatch(path.name)]
            ranks = {path.name: path.read_text() for path in found}
            if len(ranks) == NUM_AGENTS * RANKS_PER_AGENT and all(ranks.values()):
                return {name: int(pid) for name, pid in ranks.items()}
            time.sleep(POLL_S)
        raise SystemExit(f"torchrun's ranks did not all_reduce within {START_TIMEOUT_S:g} s: {self.said()[-2000:]}")

    def _all_of(self, index: int) -> list[ProcessId]:
        top = ProcessId.of(self._agents[index].pid)
        return [] if top is None else [top, *killing.descendants(top)]
