"""The functions of `torch.cuda`, by a table.

See [Note: how], 2, of the package.
"""

from __future__ import annotations

import os
import types
from collections import defaultdict
from typing import Any

from .names import NAME, VARIABLE
from .streams import Device, Event, Stream, StreamContext, current_device, set_device

CAPABILITY = (8, 0)  # the first that has bfloat16, so that scripts which ask take that way
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SM_NUM_GPUS")


def num_devices() -> int:
    """Return how many GPUs are made up: one a process of this host, as far as its launcher tells, at least one."""
    told = (os.environ.get(name, "") for name in _LOCAL_SIZES)
    return max([1, *(int(text) for text in told if text.isdigit())])


def replace_cuda(torch: Any) -> None:
    """Have every function of `torch.cuda` answer for a GPU that is made up."""
    cuda = torch.cuda
    for name, function in _functions(torch).items():
        setattr(cuda, name, function)
        for part in (cuda.memory, cuda.random):  # where they come from: some scripts look there
            if hasattr(part, name):
                setattr(part, name, function)
    for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"):
        setattr(cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    for name in ("range_push", "range_pop", "mark"):
        setattr(cuda.nvtx, name, lambda *_, **__: 0)
    cuda.nvtx.range = lambda *_, **__: StreamContext()
    cuda.profiler.start, cuda.profiler.stop = (lambda: None), (lambda: None)


def _functions(torch: Any) -> dict[str, Any]:
    default = torch.default_generator
    # Each name has an object of its own: torch.compile keeps rules by object, and refuses two for one.
    functions: dict[str, Any] = {name: lambda *_, _answer=answer, **__: _answer for name, answer in _answers().items()}
    functions.update(
        device_count=num_devices,
        current_device=current_device,
        set_device=set_device,
        device=Device,
        device_of=lambda _: Device(None),
        Event=Event,
        Stream=Stream,
        ExternalStream=type("ExternalStream", (Stream,), {}),
        stream=lambda stream: StreamContext(stream),
        StreamContext=StreamContext,
        manual_seed=lambda seed: default.manual_seed(int(seed)) and None,
        manual_seed_all=lambda seed: default.manual_seed(int(seed)) and None,
        seed=lambda: default.seed() and None,
        seed_all=lambda: default.seed() and None,
        initial_seed=lambda: default.initial_seed(),
        get_rng_state=lambda device=None: default.get_state(),
        get_rng_state_all=lambda: [default.get_state()],
        set_rng_state=lambda state, device=None: default.set_state(state) and None,
        set_rng_state_all=lambda states: [default.set_state(state) for state in states] and None,
        CUDAGraph=_refused("torch.cuda.CUDAGraph"),
        graph=_refused("torch.cuda.graph"),
        make_graphed_callables=_refused("torch.cuda.make_graphed_callables"),
        _lazy_init=_refused("what was called of torch.cuda"),
        _is_clary=True,
    )
    return functions


def _answers() -> dict[str, Any]:
    """Return what functions say that say one thing always."""
    stream = Stream()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    properties = types.SimpleNamespace(
        name=NAME,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=memory,
        multi_processor_count=os.cpu_count(),
        is_integrated=True,
        is_multi_gpu_board=False,
        warp_size=32,
    )
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": None,  # asked for below, since launchers may set it later
        "get_device_name": NAME,
        "get_device_capability": CAPABILITY,
        "get_device_properties": properties,
        "is_bf16_supported": True,
        "is_tf32_supported": True,
        "is_current_stream_capturing": False,
        "can_device_access_peer": True,
        "current_stream": stream,
        "default_stream": stream,
        "mem_get_info": (free, memory),
        "memory_summary": f"{NAME}: no memory of a GPU is used",
        "memory_snapshot": [],
        "memory_stats": defaultdict(int),
        "list_gpu_processes": "",
        "get_arch_list": [],
    }
    zeros = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached"
    nothing = (
        "init synchronize empty_cache ipc_collect reset_peak_memory_stats reset_max_memory_allocated set_stream "
        "reset_max_memory_cached reset_accumulated_memory_stats set_per_process_memory_fraction"
    )
    answers.update(dict.fromkeys([*zeros.split(), "utilization", "memory_usage"], 0))
    answers.update(dict.fromkeys(nothing.split()))
    return answers


def _refused(what: str) -> Any:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"{VARIABLE}=1: {what} has no meaning on the CPU, so this part cannot be rehearsed")

    return refuse
