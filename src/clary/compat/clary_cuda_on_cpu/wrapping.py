"""Wrappers of calls whose devices torch's modes cannot intercept: loading, autocast, scaler, parallel modules, groups.

See point 3 of [Note: how] in the package's docstring.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from .mode import is_cuda, on_cpu


def wrap_devices(torch: Any) -> None:
    """Wrap the functions of torch that take a device and that its modes do not intercept."""

    def placed(location: Any) -> Any:
        if isinstance(location, dict):
            return {key: on_cpu(value) for key, value in location.items()}
        return "cpu" if location is None else on_cpu(location)

    load = torch.load

    @functools.wraps(load)
    def load_on_cpu(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(f, placed(map_location), *args, **kwargs)

    fork = torch.random.fork_rng

    @functools.wraps(fork)
    def fork_cpu(
        devices: Any = None,
        enabled: bool = True,
        _caller: str = "fork_rng",
        _devices_kw: str = "devices",
        **kwargs: Any,
    ) -> Any:
        if is_cuda(kwargs.get("device_type", "cuda")):
            # if devices were listed, fork_rng would use the module `torch.cpu`, which cannot fork generators
            devices = []
        return fork(devices, enabled, _caller, _devices_kw, **kwargs)

    torch.load = load_on_cpu
    torch.random.fork_rng = fork_cpu
    set_device, set_type = torch.set_default_device, torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        set_type(kind.replace("torch.cuda.", "torch.") if isinstance(kind, str) else kind)

    torch.set_default_device = functools.wraps(set_device)(lambda device: set_device(on_cpu(device)))
    torch.set_default_tensor_type = functools.wraps(set_type)(set_default_tensor_type)
    torch.Tensor.record_stream = lambda self, stream: None  # torch checks the stream's class before modes see the call
    wrap_generator(torch)
    for storage in (torch.UntypedStorage, torch.TypedStorage):
        storage.cuda = lambda self, *_, **__: self


def wrap_generator(torch: Any) -> None:
    """Replace `torch.Generator` by a class that makes CPU generators; torch's own generators are its instances, too."""
    original = torch.Generator

    class Kind(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    class Generator(original, metaclass=Kind):  # type: ignore[misc, valid-type]
        __module__, __doc__ = original.__module__, original.__doc__

        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, on_cpu(device))

    torch.Generator = Generator


def wrap_precision(torch: Any) -> None:
    """Wrap autocast and its scaler."""
    autocast, scaler = torch.autocast.__init__, torch.amp.GradScaler.__init__

    @functools.wraps(autocast)
    def init_autocast(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if is_cuda(device_type):
            device_type, dtype = "cpu", torch.bfloat16 if dtype in (None, torch.float16) else dtype
        autocast(self, device_type, dtype, *args, **kwargs)

    @functools.wraps(scaler)
    def init_scaler(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        scaler(self, on_cpu(device), *args, **kwargs)

    torch.autocast.__init__ = init_autocast
    torch.amp.GradScaler.__init__ = init_scaler


def wrap_parallel(torch: Any) -> None:
    """Wrap modules that take devices."""
    nn = torch.nn
    init = nn.parallel.DistributedDataParallel.__init__

    @functools.wraps(init)
    def init_distributed(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        init(self, module, None, None, *args, **kwargs)

    def init_data_parallel(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        nn.Module.__init__(self)
        self.module, self.device_ids, self.dim = module, [], dim  # as torch does without a GPU

    nn.parallel.DistributedDataParallel.__init__ = init_distributed
    nn.DataParallel.__init__ = init_data_parallel


def leave_compiling_out(torch: Any) -> None:
    """Make `torch.compile` return its argument: torch cannot trace through this kind of mode."""
    original = torch.compile

    @functools.wraps(original)
    def compile_nothing(model: Any = None, **_: Any) -> Any:
        return (lambda function: function) if model is None else model

    torch.compile = compile_nothing
    torch.nn.Module.compile = lambda self, *_, **__: None


class ProcessGroupNCCL:
    """Replaces torch's class of groups over nccl if torch lacks that class: no group is an instance of it.

    Options have no effect.
    """

    class Options:
        """Accepts every option, and keeps `is_high_priority_stream` alone."""

        def __init__(self, **options: Any) -> None:
            self.is_high_priority_stream = bool(options.get("is_high_priority_stream", False))
            self.config = types.SimpleNamespace()


def wrap_distributed(dist: Any) -> None:
    """Make groups over nccl use gloo."""

    def of_cpu(backend: Any) -> Any:
        return "gloo" if isinstance(backend, str) and "nccl" in backend.lower() else backend

    def wrap_group(make: Any, place: int) -> Any:
        @functools.wraps(make)
        def make_of_cpu(*args: Any, **kwargs: Any) -> Any:
            before = args
            args = tuple(of_cpu(one) if number == place else one for number, one in enumerate(args))
            if "backend" in kwargs:
                kwargs["backend"] = of_cpu(kwargs["backend"])
            if args != before or kwargs.get("backend") == "gloo":
                kwargs.pop("pg_options", None)
            kwargs.pop("device_id", None)
            return make(*args, **kwargs)

        return make_of_cpu

    barrier = dist.barrier

    @functools.wraps(barrier)
    def barrier_of_cpu(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return barrier(group, async_op)

    for module in (dist, dist.distributed_c10d):
        module.init_process_group = wrap_group(dist.distributed_c10d.init_process_group, 0)
        module.new_group = wrap_group(dist.distributed_c10d.new_group, 2)
        module.barrier = barrier_of_cpu
        module.is_nccl_available = lambda: True
        if not hasattr(module, "ProcessGroupNCCL"):
            module.ProcessGroupNCCL = ProcessGroupNCCL
