"""The end of a training: marked by each worker, by each host's agent, or by the job's end mark.

Another program may follow a worker's program in the same folder: a restarted worker, or another try of the job. Only
the end of the last program counts.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from clary.train.debugger.errors import TensorFileError
from clary.train.debugger.files import END_OF_JOB, ENDED, HOST_FILE, WORKER_FILE, Files

_MAX_JSON = 64 * 1024  # bytes


class Ends:
    """The ends of workers and hosts known so far.

    Args:
        by_mark: whether only the agents' marks end a training, since another worker may follow a worker that ends.
    """

    def __init__(self, *, by_mark: bool = False) -> None:
        self._by_mark = by_mark
        self._began: dict[str, float] = {}  # worker -> start of its last program, in seconds since 1970
        self._ended: dict[str, float] = {}
        self._known: dict[str, str] = {}
        self._num_wanted = 1

    @property
    def workers(self) -> frozenset[str]:
        """Workers whose programs have saved at least once."""
        return frozenset(self._began)

    def began_at(self, worker: str) -> float:
        """Return the time at which a worker's last program began to save; 0 if it is unknown."""
        return self._began.get(worker, 0.0)

    def begin(self, worker: str, began_at: float, num_wanted: int) -> bool:
        """Record the start of a worker's program; return whether it replaces an earlier program.

        Args:
            num_wanted: number of workers that must end, according to this worker.
        """
        self._num_wanted = max(self._num_wanted, num_wanted)
        before = self._began.setdefault(worker, began_at)
        self._began[worker] = max(before, began_at)
        return began_at > before

    def look(self, files: Files) -> bool:
        """Return whether the training has ended. Raises: OSError."""
        if END_OF_JOB in files.listing(""):
            return True
        hosts: dict[int, dict[str, int]] = {}  # try -> host -> number of hosts
        for name, mark in files.listing(ENDED).items():
            if (worker := WORKER_FILE.fullmatch(name)) is not None:
                if self._known.get(name) != mark:
                    self._ended[worker[1]] = _ended_at(files, f"{ENDED}/{name}")
                    self._known[name] = mark
            elif (host := HOST_FILE.fullmatch(name)) is not None:
                hosts.setdefault(int(host[2]), {})[host[1]] = int(host[3])
        if hosts:
            last = hosts[max(hosts)]
            if len(last) >= max(last.values()):
                return True
        if self._by_mark:
            return False
        num_over = sum(self._ended.get(worker, -1.0) >= began for worker, began in self._began.items())
        return num_over == len(self._began) and num_over >= self._num_wanted


def mark_ended(path: str | Path) -> None:
    """Mark a training as ended, on behalf of its program. Raises: OSError."""
    (Path(path) / END_OF_JOB).touch()


def _ended_at(files: Files, name: str) -> float:
    """Return the time of a worker's end mark; a damaged mark also counts as an end."""
    try:
        return float(json.loads(files.read(name, 0, _MAX_JSON))["ended_at"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, FileNotFoundError, TensorFileError):
        return math.inf
