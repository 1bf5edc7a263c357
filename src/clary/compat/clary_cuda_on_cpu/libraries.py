"""Patches parts of libraries that check for a GPU by themselves, when a program imports these libraries.

See [Note: libraries] of the package.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from .deepspeed_adam import mend_adam
from .devices import make_up_devices
from .mode import on_cpu


def mend_libraries() -> None:
    """Patch the modules of the table: imported modules at once, other modules when they are imported."""
    for name, mend in _MENDS.items():
        if name in sys.modules:
            mend(sys.modules[name])
    sys.meta_path.insert(0, LibraryFinder())


class LibraryFinder(MetaPathFinder):
    """Finds the modules of the table as Python does, with a loader that patches them; finds no other module."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the module's own spec with the patching loader; None for a module that is not in the table.

        Args: as `importlib.abc.MetaPathFinder.find_spec`.
        """
        mend = _MENDS.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if mend is not None else None
        if mend is None or spec is None or spec.loader is None:
            return None
        spec.loader = _MendingLoader(spec.loader, mend)
        return spec


class _MendingLoader(Loader):
    """Loads a module by the original loader, restores that loader in the module, and patches the module."""

    def __init__(self, loader: Any, mend: Callable[[Any], None]) -> None:
        self._loader, self._mend = loader, mend

    def create_module(self, spec: ModuleSpec) -> Any:
        """Create the module by the original loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Run the module by the original loader, then patch it."""
        module.__loader__ = self._loader
        module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._mend(module)


def _mend_fsdp(module: Any) -> None:
    """Make FSDP shard over CPUs: it synchronises states on the CPU, and uses the CPU if no device is given."""
    module._check_module_states_for_sync_module_states = lambda module_states: None
    initialize = getattr(module, "_init_device_handle", None)
    if initialize is None:
        return

    @functools.wraps(initialize)
    def initialize_cpu(state: Any, root: Any, ignored_params: Any, device_id: Any, *more: Any) -> Any:
        return initialize(state, root, ignored_params, "cpu" if device_id is None else on_cpu(device_id), *more)

    module._init_device_handle = initialize_cpu


def _mend_device_handles(module: Any) -> None:
    """Make FSDP take its streams and events from `torch.cuda`, which has all of them; `torch.cpu` lacks some."""
    module._FSDPDeviceHandle.from_device = classmethod(lambda cls, device: sys.modules["torch.cuda"])


def _mend_flat_parameters(module: Any) -> None:
    """Prevent FSDP from moving an offloaded parameter to the CPU, where it is: FSDP would free the only copy."""
    module.FlatParamHandle.to_cpu = lambda self: contextlib.nullcontext()


def _mend_device_mesh(module: Any) -> None:
    """Turn CUDA meshes into CPU meshes: torch makes tensors and generators on the device that a mesh names."""
    mesh = getattr(module, "DeviceMesh", None)
    if mesh is None:
        return
    initialize = mesh.__init__

    @functools.wraps(initialize)
    def initialize_cpu(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        initialize(self, on_cpu(device_type), *args, **kwargs)

    mesh.__init__ = initialize_cpu


def _mend_lightning(module: Any) -> None:
    """Make Lightning's accelerator accept the device that it made itself: the CPU."""
    module.CUDAAccelerator.setup_device = lambda self, device: None


def _mend_lightning_devices(module: Any) -> None:
    """Make Lightning find as many GPUs as a script requests: Lightning itself starts the other processes."""
    check = module._sanitize_gpu_ids

    @functools.wraps(check)
    def make_up(gpus: list[int], *args: Any, **kwargs: Any) -> Any:
        make_up_devices(1 + max(gpus))
        return check(gpus, *args, **kwargs)

    module._sanitize_gpu_ids = make_up


_MENDS: dict[str, Callable[[Any], None]] = {
    "torch.distributed.fsdp._init_utils": _mend_fsdp,
    "torch.distributed.fsdp._common_utils": _mend_device_handles,
    "torch.distributed.fsdp._flat_param": _mend_flat_parameters,
    "torch.distributed.device_mesh": _mend_device_mesh,
    "deepspeed.ops.adam.fused_adam": mend_adam("FusedAdam"),
    "deepspeed.ops.adam.cpu_adam": mend_adam("DeepSpeedCPUAdam"),
    "lightning.fabric.utilities.device_parser": _mend_lightning_devices,
    "lightning_fabric.utilities.device_parser": _mend_lightning_devices,
    "lightning.fabric.accelerators.cuda": _mend_lightning,
    "lightning.pytorch.accelerators.cuda": _mend_lightning,
    "lightning_fabric.accelerators.cuda": _mend_lightning,
    "pytorch_lightning.accelerators.cuda": _mend_lightning,
}
