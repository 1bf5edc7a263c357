"""Groups for tests of collectives: ranks as threads of this process, or as separate processes."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clary.train._native import core
from clary.train.collective.communicator import open_group
from clary.train.collective.settings import CollectiveSettings

ROOT = Path(__file__).resolve().parents[3]
TRAIN_PYTHON = ROOT / ".venvs/train/bin/python"
LIMIT_S = 40.0  # limit for every wait of a test
FAST = CollectiveSettings(
    timeout_s=10.0, connect_timeout_s=15.0, slot_bytes=4096, master_address="127.0.0.1", core="reference"
)
CORES = [
    "reference",
    pytest.param("native", marks=pytest.mark.skipif(not core.is_available(), reason=str(core.unavailable_reason()))),
]


class MemoryStore:
    """`bootstrap.store.Store` for ranks of one process."""

    def __init__(self):
        self.values = {}
        self._changed = threading.Condition()

    def set(self, key, value):
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key, timeout_s):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, timeout_s):
                raise TimeoutError(key)
            return self.values[key]

    def delete(self, key):
        with self._changed:
            self.values.pop(key, None)


def run_ranks(size, act):
    """Call `act(rank)` in one thread per rank; return by rank the result, or the exception that it raised."""
    outcomes = [None] * size
    verdicts = []

    def run(rank):
        try:
            outcomes[rank] = act(rank)
        except Exception as error:  # noqa: BLE001 - it is the outcome
            outcomes[rank] = error
        except pytest.fail.Exception as verdict:
            verdicts.append(verdict)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    deadline_s = time.monotonic() + LIMIT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    stuck = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    assert not stuck, f"ranks {stuck} have not come back within {LIMIT_S} s"
    if verdicts:
        raise verdicts[0]
    return outcomes


def run_group(size, act, *, num_hosts=1, settings=FAST, store=None):
    """Form a group and call `act(communicator)` on every rank; return results by rank, raise the first error.

    With several hosts, ranks are assigned to hosts in blocks, and hosts connect by TCP over loopback.
    """
    store = store or MemoryStore()

    def run(rank):
        own = replace(settings, host=f"host{rank * num_hosts // size}")
        with open_group(store, rank=rank, size=size, settings=own) as group:
            return act(group)

    outcomes = run_ranks(size, run)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if failures:
        raise failures[0]
    return outcomes


def open_descriptors():
    """Return the open files of this process: descriptor -> target."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # descriptor of the listing itself
            continue
    return found


@contextlib.contextmanager
def held_ports(count=1):
    """Give the first of some adjacent ports, held so that only a program that names one of them can listen there."""
    while True:
        with contextlib.ExitStack() as held:
            first = 0
            try:
                for number in range(count):
                    holder = held.enter_context(socket.socket())
                    holder.bind(("127.0.0.1", first + number))
                    # Set after the bind, so that the bind fails at a held port; a listener with the option succeeds.
                    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    first = first or holder.getsockname()[1]
            except OSError:
                continue  # the next port is taken
            yield first
            return


class RankProcesses:
    """One process per rank, running a program of this folder with RANK and WORLD_SIZE set; a context manager."""

    def __init__(self, program, scenario, size, *, port, python=sys.executable, environment=None, hosts=()):
        self.processes = []
        for rank in range(size):
            variables = {
                **os.environ,
                "PYTHONPATH": str(ROOT / "src"),
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                **({"CLARY_COLLECTIVE_HOST": hosts[rank]} if hosts else {}),
                **(environment or {}),
            }
            self.processes.append(
                subprocess.Popen(
                    [str(python), str(Path(__file__).with_name(program)), scenario],
                    env=variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait(LIMIT_S)
            process.stdin.close()
            process.stdout.close()
            process.stderr.close()

    def read_line(self, rank):
        """Return the next line of a rank's output as JSON."""
        line = self.processes[rank].stdout.readline()
        assert line, f"rank {rank} ended: {self.processes[rank].stderr.read()}"
        return json.loads(line)

    def results(self):
        """Wait for all ranks to end; return the last line of each, parsed as JSON."""
        found = []
        for rank, process in enumerate(self.processes):
            output, errors = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, f"rank {rank}: {errors}"
            found.append(json.loads(output.splitlines()[-1]))
        return found
