"""The ProcessGroup behind backend `smddp`: torch's interface of a group besides its collectives.

Where: `creation.connect` makes one for init_process_group and for every new_group; torch keeps it in its tables until
destroy_process_group. C++ (DDP's reducer, functional collectives) reaches it through torch's own trampoline, which
looks methods up by name, so their names are torch's (docs/adr/0009).
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from clary.train._native import core as core_module
from clary.train._native import interface
from clary.train._native.interface import Core
from clary.train.collective.adapters.torch import calls, collectives, completion, devices, staging, tensors, work
from clary.train.collective.adapters.torch.backend_name import BACKEND
from clary.train.collective.adapters.torch.collectives import Collectives
from clary.train.collective.adapters.torch.completion import CompletionThread
from clary.train.collective.adapters.torch.untraced import keep_untraced
from clary.train.collective.adapters.torch.work import JointWork

_log = logging.getLogger(__name__)
_open_groups: weakref.WeakSet[SmddpProcessGroup] = weakref.WeakSet()


class SmddpProcessGroup(Collectives, dist.ProcessGroup):
    """A group of ranks over a core.

    torch asks a group for its backend by device to learn what it can do; here group and backend are one.

    Args:
        store: of the group, as `get_group_store` returns it.
        open_second_core: connects the same ranks once more, for tensors that pass through host memory; all ranks must
            call it.
        timeout: time limit that the script asked for; NCCL gets it.
    """

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False
    _is_open = False

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        *,
        name: str,
        core: Core,
        open_second_core: Callable[[], Core],
        timeout: timedelta,
    ) -> None:
        dist.ProcessGroup.__init__(self, rank, size)
        Collectives.__init__(self, core, CompletionThread(core, name, rank), rank, size)
        self._store = store
        self._open_second_core = open_second_core
        self._asked_timeout = timeout
        self._name = name
        self._description = "undefined"
        self._is_open = True
        self._device_group: Any = None
        self._staged_on: SmddpProcessGroup | None = None
        self._on_host: Collectives | None = None
        self._carried: staging.StagedGroup | None = None
        self._choosing = threading.Lock()  # held while all ranks agree, which may take as long as the slowest rank
        self._carrying = threading.Lock()
        _open_groups.add(self)

    # Names.

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return BACKEND

    def name(self) -> str:
        """Return the name of the backend, as torch's groups do."""
        return BACKEND

    def getGroupName(self) -> str:
        """Return the name under which torch knows the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Set the name under which torch knows the group."""
        self._name = name

    def getGroupDesc(self) -> str:
        """Return the description of the group."""
        return self._description

    def setGroupDesc(self, description: str) -> None:
        """Set the description of the group."""
        self._description = description

    _get_backend_name = getBackendName
    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> dist.Store:
        """Return the store of the group."""
        return self._store

    def __repr__(self) -> str:
        return f"SmddpProcessGroup({self._name!r}, rank {self._own_rank} of {self._num_ranks})"

    # Abilities.

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in (("cpu", "cuda") if torch.cuda.is_available() else ("cpu",))]

    def _get_backend(self, device: torch.device) -> SmddpProcessGroup:
        if torch.device(device).type not in ("cpu", "cuda"):
            raise RuntimeError(f"backend smddp does not support device {device}; it serves cpu and cuda")
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return False: a core is no faster with memory that it allocates itself."""
        return False

    def _has_hooks(self) -> bool:
        return False

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> JointWork:
        issued, self._coalesced = self._coalesced or [], None
        return JointWork(issued, [tensor for one in issued for tensor in one.result()])

    def _get_sequence_number_for_group(self) -> int:
        """Return how many collectives this rank has issued; equal on all ranks that are in step."""
        return self._num_issued

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: every rank counts from 0."""

    def split_group(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: connections are made for each group."""
        raise NotImplementedError("backend smddp does not support split_group; use torch.distributed.new_group")

    def merge_remote_group(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: connections are made for each group."""
        raise NotImplementedError("backend smddp does not support merge_remote_group; use init_process_group")

    # Tensors on GPUs.

    def _elsewhere(self, tensor: torch.Tensor) -> Any:
        if not tensor.is_cuda:
            return None
        with self._choosing:
            if self._device_group is None:
                self._device_group = self._make_device_group(tensor.device)
        return self._device_group

    def _carrier(self, tensor: torch.Tensor) -> Any:
        """Return the carrier of messages of CUDA tensors: host memory, over this group's own core.

        NCCL and a second core need all ranks to agree first. Messages of one tag stay in the order of their calls, of
        CUDA tensors and of others.
        """
        if not tensor.is_cuda:
            if self._carried is not None:
                self._carried.drain_messages()
            return None
        with self._carrying:
            if self._carried is None:
                self._on_host = Collectives(self._core, self._completion, self._own_rank, self._num_ranks)
                self._on_host._timeout_s = self._timeout_s
                self._carried = staging.StagedGroup(self._on_host, staging.CudaStreams(tensor.device))
        return self._carried

    def _make_device_group(self, device: torch.device) -> Any:
        """Choose the path of CUDA tensors together with all other ranks, and open it. Collective."""
        record = devices.encode(devices.own_placement(device))
        records = torch.empty(self._num_ranks, record.numel(), dtype=torch.uint8)
        self.all_gather_single(records, record).wait()
        path, reason = devices.choose_path([devices.decode(one) for one in records])
        _log.info("group %s: CUDA tensors go by %s: %s", self._name, path, reason)
        if path is devices.Path.NCCL:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._asked_timeout
            store = dist.PrefixStore("nccl/", self._store)
            return dist.ProcessGroupNCCL(store, self._own_rank, self._num_ranks, options)
        self._staged_on = SmddpProcessGroup(
            self._store,
            self._own_rank,
            self._num_ranks,
            name=f"{self._name}-staged",
            core=self._open_second_core(),
            open_second_core=self._open_second_core,
            timeout=self._asked_timeout,
        )
        return staging.StagedGroup(self._staged_on, staging.CudaStreams(device))

    # Limits and closing.

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the limit of operations from now on; the same on all ranks."""
        self._timeout_s = timeout.total_seconds()
        if self._on_host is not None:
            self._on_host._timeout_s = self._timeout_s

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        """Fail running operations, here and on all other ranks, and close the group."""
        if self._is_open:
            self._core.abort(f"rank {self._own_rank} aborted group {self._name!r}")
        self.shutdown()

    def shutdown(self) -> None:
        """Leave the group in an orderly way; running operations fail on this rank. A second call does nothing."""
        if self._is_open:
            self._is_open = False
            _open_groups.discard(self)
            self._core.close()
            self._completion.join()
            if self._carried is not None:
                self._carried.close()
            if self._staged_on is not None:
                self._staged_on.shutdown()
                self._device_group.close()
            elif self._device_group is not None:
                self._device_group.shutdown()

    def __del__(self) -> None:
        self.shutdown()


keep_untraced(core_module, interface, calls, collectives, completion, staging, tensors, work, sys.modules[__name__])


@atexit.register
def _leave_all_groups() -> None:
    """Close all groups that a script did not destroy, so that peers see no lost rank."""
    for group in list(_open_groups):
        group.shutdown()
