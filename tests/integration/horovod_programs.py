"""Ranks of a program, started with the variables that a job's launcher sets, and the output of each rank."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAIN_PYTHON = ROOT / ".venvs/train/bin/python"
_PYTHON_PATH = f"{ROOT / 'src' / 'clary' / 'compat'}:{ROOT / 'src'}"


@dataclass(frozen=True)
class Ended:
    """The end of a rank: its exit code, negative for a signal, and its output."""

    code: int
    output: str


class Ranks:
    """Running ranks of one program.

    Args:
        program: file of the program; further positional arguments are the program's arguments.
        size: number of ranks.
        folder: folder for the output of ranks, which have its path in PROGRAM_FOLDER.
        variables: further environment variables of each rank.
    """

    def __init__(
        self, program: Path, size: int, folder: Path, *arguments: str, python: Path = TRAIN_PYTHON, **variables: str
    ) -> None:
        port, secret = free_port(), secrets.token_hex(16)
        self._logs = [folder / f"rank-{rank}.log" for rank in range(size)]
        self.processes = []
        for rank, log in enumerate(self._logs):
            environment = {
                **os.environ,
                "PYTHONPATH": _PYTHON_PATH,
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "CLARY_HOROVOD_PORT": str(port),
                "CLARY_COLLECTIVE_SECRET": secret,
                "PROGRAM_FOLDER": str(folder),
                **variables,
            }
            with log.open("wb") as file:
                self.processes.append(
                    subprocess.Popen(
                        [str(python), str(program), *arguments], env=environment, stdout=file, stderr=subprocess.STDOUT
                    )
                )

    def output(self, rank: int) -> str:
        """Return a rank's output so far."""
        return self._logs[rank].read_text(errors="replace")

    def await_words(self, words: str, rank: int = 0, limit_s: float = 60) -> None:
        """Wait until a rank has printed some words. Raises: AssertionError after the time limit."""
        deadline = time.monotonic() + limit_s
        while words not in self.output(rank):
            assert time.monotonic() < deadline, f"rank {rank} did not print {words!r}: {self.output(rank)[-3000:]}"
            assert self.processes[rank].poll() is None, f"rank {rank} has ended: {self.output(rank)[-3000:]}"
            time.sleep(0.02)

    def wait(self, limit_s: float = 120) -> list[Ended]:
        """Wait for all ranks and return their ends; ranks beyond the limit are killed, as their exit codes show."""
        deadline = time.monotonic() + limit_s
        for process in self.processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return [Ended(process.returncode, self.output(rank)) for rank, process in enumerate(self.processes)]


def free_port() -> int:
    """Return a port of loopback that has just been free."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
