"""The runtime of a parallel program, one per process: configuration, mesh, groups, device.

Where: every rank calls `initialize` first, once; other modules call `current()`. `initialize` initialises
torch.distributed unless the program has done so.

A rank reads its place from the variables of torchrun or Open MPI; without them it is the only rank.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from clary.train.collective.adapters.torch.store_opening import LIMIT_S, wait_until_open
from clary.train.collective.bootstrap.hosts import host_name
from clary.train.collective.settings import CollectiveSettings
from clary.train.parallel import one_library
from clary.train.parallel.configuration import Configuration
from clary.train.parallel.groups import Groups
from clary.train.parallel.layout.agreement import check_keys
from clary.train.parallel.layout.mesh import Along, Mesh
from clary.train.parallel.layout.place import Place, find_place, find_timeout_s

_MASTER_PORT = 29500  # torch's default, if neither launcher nor configuration sets a port


@dataclass
class Runtime:
    """One rank of a parallel program.

    Args:
        device: device of this rank's computation.
        timeout_s: timeout of every wait for another rank.
        model: the only DistributedModel; None before it is made.
        optimizer: the DistributedOptimizer; None before it is made.
    """

    configuration: Configuration
    groups: Groups
    place: Place
    device: torch.device
    timeout_s: float
    model: Any = None
    optimizer: Any = None

    @property
    def mesh(self) -> Mesh:
        """The mesh: each rank's place on the axes."""
        return self.groups.mesh

    @property
    def rank(self) -> int:
        """This process's global rank."""
        return self.place.rank

    @property
    def pipeline_rank(self) -> int:
        """Index of the part of the model that this rank holds."""
        return self.groups.group_rank(Along.PP)


_runtime: Runtime | None = None


def is_initialized() -> bool:
    """Return whether `initialize` has been called."""
    return _runtime is not None


def current() -> Runtime:
    """Return the runtime of this process.

    Raises: RuntimeError before `initialize`.
    """
    if _runtime is None:
        raise RuntimeError("model parallelism is not initialised: call smp.init() first, on every rank")
    return _runtime


def initialize(configuration: Configuration) -> Runtime:
    """Make this process a rank of a parallel program. Every rank calls it; a second call with equal keys does nothing.

    Raises:
        ValueError: the number of ranks does not fit the degrees, ranks were given different keys, the host has no GPU
            for this rank but has others, or CLARY_PARALLEL_TIMEOUT_S is not a positive number.
        RuntimeError: the process is initialised with other keys already, `tsm.init` was called, MASTER_ADDR is not set,
            or ranks do not join within the timeout (with torch's message).
    """
    global _runtime
    if _runtime is not None:
        if _runtime.configuration != configuration:
            raise RuntimeError(f"initialised already, with other keys: {_runtime.configuration}; got {configuration}")
        return _runtime
    one_library.check(one_library.V1)
    timeout_s = find_timeout_s(os.environ)
    place = find_place(os.environ)
    is_untold = place.size == 1
    if dist.is_initialized():  # the program itself initialised torch.distributed: use its ranks
        place = Place(dist.get_rank(), dist.get_world_size(), place.local_rank, place.local_size)
    mesh = configuration.mesh(place.size)  # checked before any rank waits for another
    if not dist.is_initialized():
        _join(configuration, place, _device(place), timeout_s)
    check = partial(check_keys, vars(configuration))
    groups = Groups(mesh, place.rank, timeout=timedelta(seconds=timeout_s), check=check)
    if is_untold and place.size > 1:
        place = _place_on_host(place, groups)
    device = _device(place)
    one_library.claim(one_library.V1)
    _runtime = Runtime(configuration, groups, place, device, timeout_s)
    return _runtime


def reset() -> None:
    """Drop the runtime, and close its model; torch.distributed stays initialised.

    For programs that initialise twice, such as tests.
    """
    global _runtime
    if _runtime is not None and _runtime.model is not None:
        _runtime.model.close()
    _runtime = None
    one_library.release(one_library.V1)


def _place_on_host(place: Place, groups: Groups) -> Place:
    """Complete a place with its local rank and local size if the launcher has not set them."""
    hosts = groups.allgather(host_name(CollectiveSettings.from_environment(os.environ)), Along.WORLD)
    own = hosts[place.rank]
    return Place(place.rank, place.size, hosts[: place.rank].count(own), hosts.count(own))


def _device(place: Place) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if place.local_rank >= torch.cuda.device_count():
        raise ValueError(
            f"local rank {place.local_rank} has no GPU of its own: this host has {torch.cuda.device_count()}; start as "
            "many processes on a host as it has GPUs"
        )
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return device


def _join(configuration: Configuration, place: Place, device: torch.device, timeout_s: float) -> None:
    """Initialise torch.distributed."""
    backend = configuration.ddp_dist_backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=timeout_s)
    if place.size == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
        return
    if "MASTER_ADDR" not in os.environ:
        raise RuntimeError(f"MASTER_ADDR is not set: rank {place.rank} of {place.size} cannot find rank 0")
    port = configuration.ddp_port or int(os.environ.get("MASTER_PORT", _MASTER_PORT))
    # torchrun's agent already serves the store at MASTER_PORT; with a port from the configuration, rank 0 opens the
    # store.
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and not configuration.ddp_port
    is_master = place.rank == 0 and not is_agents
    if not is_master:
        wait_until_open(os.environ["MASTER_ADDR"], port, limit_s=min(LIMIT_S, timeout_s))
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        port,
        place.size,
        is_master=is_master,
        timeout=timeout,
        wait_for_workers=False,
    )
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("clary-parallel", store),
        rank=place.rank,
        world_size=place.size,
        timeout=timeout,
    )
