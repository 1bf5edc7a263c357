"""The doors through which a rank calls a collective: torch.distributed's groups, mpi4py, our NumPy adapter.

Where: `collective_rank` opens one by name and times its calls. Arrays are flat float32, on the same memory for every
door of a process. Imported by ranks only: nothing here runs in the process that gives orders.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np

TIMEOUT_S = 60
ALIGNMENT = 64
FLOAT_BYTES = 4


class Door(Protocol):
    """One way to call a group."""

    def call(self, collective: str, output: Any, values: Any) -> Callable[[], None]:
        """Return a function that runs the collective once on these arrays and returns when the result is there.

        Args:
            collective: `all_reduce` (in place: `output` is `values`), `all_gather` (`values` is the own chunk) or
                `reduce_scatter` (`output` is the own chunk).
        """


def allocate(count: int) -> Any:
    """Return `count` float32, aligned as torch aligns its tensors, every page touched."""
    memory = np.zeros(count * FLOAT_BYTES + ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    values = memory[start : start + count * FLOAT_BYTES].view(np.float32)
    values.fill(1)
    return values


class TorchDoors:
    """Groups of torch.distributed in one process: gloo's for everything, others beside it."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        # A file in place of a TCP store: no port is taken, and nothing of it is on the links under test.
        self._store = dist.FileStore(str(folder / "store"), size)
        timeout = timedelta(seconds=TIMEOUT_S)
        dist.init_process_group("gloo", store=self._store, rank=rank, world_size=size, timeout=timeout)
        self.about = {"torch": str(torch.__version__)}
        self.rank, self.size = rank, size
        self.groups: dict[str, Any] = {"gloo": dist.group.WORLD}
        self._communicators: dict[str, Any] = {}

    def open(self, name: str, backend: str, environment: dict[str, str]) -> None:
        """Form another group of all ranks, with `environment` set meanwhile for backends that read settings from it.

        Args:
            backend: of torch.distributed; or `communicator`, which is ours without torch around it.
        """
        import torch.distributed as dist

        with _environment(environment):
            if backend == "communicator":
                self._communicators[name] = self._open_communicator(name)
                return
            if backend == "smddp":
                from clary.train.collective.adapters.torch import registration

                registration.register()
            self.groups[name] = dist.new_group(backend=backend, timeout=timedelta(seconds=TIMEOUT_S))

    def door(self, name: str) -> Door:
        """Return the door of a group."""
        if name in self._communicators:
            return _CommunicatorDoor(self._communicators[name])
        return _TorchDoor(self.groups[name])

    def explain(self, name: str, num_bytes: int) -> str:
        """Return why a communicator of ours would take which algorithm for an all_reduce."""
        return str(self._communicators[name].core.explain(0, num_bytes))

    def close(self) -> None:
        """Leave all groups."""
        import torch.distributed as dist

        for communicator in self._communicators.values():
            communicator.close()
        dist.destroy_process_group()

    def _open_communicator(self, name: str) -> Any:
        import torch.distributed as dist

        from clary.train.collective.adapters.torch.store import TorchStore
        from clary.train.collective.communicator import open_group

        store = TorchStore(dist.PrefixStore(name, self._store))
        return open_group(store, rank=self.rank, size=self.size, group_name=name)


class _TorchDoor:
    def __init__(self, group: Any) -> None:
        self._group = group

    def call(self, collective: str, output: Any, values: Any) -> Callable[[], None]:
        import torch
        import torch.distributed as dist

        target, source, group = torch.from_numpy(output), torch.from_numpy(values), self._group
        calls: dict[str, Callable[[], None]] = {
            "all_reduce": lambda: dist.all_reduce(target, group=group),
            "all_gather": lambda: dist.all_gather_single(target, source, group=group),
            "reduce_scatter": lambda: dist.reduce_scatter_single(target, source, group=group),
        }
        return calls[collective]


class _CommunicatorDoor:
    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator

    def call(self, collective: str, output: Any, values: Any) -> Callable[[], None]:
        ours = self._communicator
        calls: dict[str, Callable[[], None]] = {
            "all_reduce": lambda: ours.all_reduce(output),
            "all_gather": lambda: ours.all_gather(values, output),
            "reduce_scatter": lambda: ours.reduce_scatter(values, output),
        }
        return calls[collective]


class MpiDoors:
    """MPI_COMM_WORLD."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        library = MPI.Get_library_version().replace(",", "").split()
        self.about = {"mpi": " ".join(library[:3])}

    def open(self, name: str, backend: str, environment: dict[str, str]) -> None:
        """Refuse: there is one group."""
        raise ValueError(f"ranks of MPI open no group, got {name!r} with backend {backend!r} and {environment}")

    def door(self, name: str) -> Door:
        """Return the only door."""
        if name != "mpi":
            raise ValueError(f"ranks of MPI have the door 'mpi', got {name!r}")
        return _MpiDoor(self._mpi, self._world)

    def close(self) -> None:
        """Leave; MPI ends with the interpreter."""
        self._mpi.Finalize()


class _MpiDoor:
    def __init__(self, mpi: Any, world: Any) -> None:
        self._mpi, self._world = mpi, world

    def call(self, collective: str, output: Any, values: Any) -> Callable[[], None]:
        in_place, world = self._mpi.IN_PLACE, self._world
        calls: dict[str, Callable[[], None]] = {
            "all_reduce": lambda: world.Allreduce(in_place, output),
            "all_gather": lambda: world.Allgather(values, output),
            "reduce_scatter": lambda: world.Reduce_scatter_block(values, output),
        }
        return calls[collective]


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
