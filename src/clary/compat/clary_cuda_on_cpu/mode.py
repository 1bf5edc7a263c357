"""The torch mode in which every function of torch computes on the CPU instead of CUDA.

See point 1 of [Note: how] in the package's docstring.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any

_CUDA = re.compile(r"cuda(:\d+)?")


def is_cuda(value: Any) -> bool:
    """Whether a value names a CUDA device; False for numbers, which only `on_cpu` treats as devices."""
    if isinstance(value, str):
        return _CUDA.fullmatch(value) is not None
    return type(value).__name__ == "device" and value.type == "cuda"


def on_cpu(value: Any) -> Any:
    """Return the CPU for a CUDA device, or for a device number; return any other value unchanged."""
    return "cpu" if is_cuda(value) or (isinstance(value, int) and not isinstance(value, bool)) else value


def enter_mode(torch: Any) -> None:
    """Enter the mode, until the process ends, in this thread and all threads that start later."""
    from torch.overrides import TorchFunctionMode

    tensor = torch.Tensor
    stays = {tensor.cuda, tensor.pin_memory}
    takes_number = {tensor.to, torch._C._nn._parse_to}

    class CudaOnCpu(TorchFunctionMode):
        """The mode that point 1 of [Note: how] describes."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is torch.device:
                kind = kwargs.get("type", args[0] if args else None)
                return func("cpu") if isinstance(kind, int) or is_cuda(kind) else func(*args, **kwargs)
            if func in stays:
                return args[0]
            if func is tensor.type:
                args = tuple(one.replace("torch.cuda.", "torch.") if isinstance(one, str) else one for one in args)
            if func in takes_number:
                args = tuple(on_cpu(one) for one in args)
            if "device" in kwargs:
                kwargs = {**kwargs, "device": on_cpu(kwargs["device"])}
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}
            args = tuple("cpu" if is_cuda(one) else one for one in args)
            kwargs = {name: "cpu" if is_cuda(one) else one for name, one in kwargs.items()}
            return func(*args, **kwargs)

    CudaOnCpu().__enter__()
    _enter_in_threads(CudaOnCpu)
    _enter_in_backward(torch, CudaOnCpu)


def _enter_in_threads(mode: Any) -> None:
    start = threading.Thread.start

    @functools.wraps(start)
    def start_in_mode(thread: threading.Thread) -> None:
        run = thread.run

        def run_in_mode() -> None:
            with mode():
                run()

        thread.run = run_in_mode  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = start_in_mode  # type: ignore[assignment, method-assign]


def _enter_in_backward(torch: Any, mode: Any) -> None:
    """Enter the mode during each backward pass, for the hooks and functions of programs that run in the pass.

    torch leaves a mode while the mode handles a call, and `Tensor.backward` and `torch.autograd.grad` are such calls.
    """
    from torch.overrides import _get_current_function_mode_stack

    graph = torch.autograd.graph
    run = graph._engine_run_backward

    @functools.wraps(run)
    def run_in_mode(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(entered, mode) for entered in _get_current_function_mode_stack()):
            return run(*args, **kwargs)
        with mode():
            return run(*args, **kwargs)

    graph._engine_run_backward = torch.autograd._engine_run_backward = run_in_mode
