"""Replaces the functions and classes of `torch.cuda`, as listed in a table.

See the package: item 2 of [Note: how], and [Note: classes].
"""

from __future__ import annotations

import inspect
import pickle
import sys
import types
from typing import Any

from .answers import DeviceProperties, answers_of_cuda
from .devices import Device, DeviceOf, current_device, num_devices, set_device
from .refusing import asks_for_a_gpu, named_refusals, refusal, refused_class, refused_function
from .streams import Event, ExternalStream, Stream, StreamContext

_REFUSED_CLASSES = ("CUDAGraph", "graph", "MemPool", "GreenContext", "CUDAPluggableAllocator")
_REFUSED_FUNCTIONS = (
    "make_graphed_callables",
    "graph_pool_handle",
    "use_mem_pool",
    "change_current_allocator",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_disabled",
)
_state = types.SimpleNamespace(is_set_up=False)


def replace_cuda(torch: Any) -> None:
    """Replace functions and classes of `torch.cuda`: they simulate a GPU, or raise an error that names them."""
    cuda = torch.cuda
    for name, thing in {**_undecided(cuda), **_things(torch)}.items():
        _put(name, getattr(cuda, name, None), thing)
        setattr(cuda, name, thing)
    torch.Stream, torch.Event = Stream, Event
    for name, function in _of_memory().items():
        setattr(cuda.memory, name, function)
    for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"):
        setattr(cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(cuda.nvtx, name, lambda *_, **__: 0)
    cuda.nvtx.range = lambda *_, **__: StreamContext()
    cuda.profiler.start, cuda.profiler.stop = (lambda: None), (lambda: None)


def _put(name: str, before: Any, now: Any) -> None:
    """Replace a function or class in every module of `torch.cuda` that holds it, as scripts may use any module."""
    if before is None:
        return
    for place, module in list(sys.modules.items()):
        if place.startswith("torch.cuda.") and vars(module).get(name) is before:
            setattr(module, name, now)


def _undecided(cuda: Any) -> dict[str, Any]:
    """Return torch's own functions of `torch.cuda`, wrapped so that an error names the failing function."""
    found = {name: getattr(cuda, name, None) for name in cuda.__all__}
    return {
        name: named_refusals(thing, f"torch.cuda.{name}") for name, thing in found.items() if inspect.isfunction(thing)
    }


def _things(torch: Any) -> dict[str, Any]:
    cuda, default = torch.cuda, torch.default_generator
    # A separate object for each name: torch.compile finds its trace rules by object, and refuses two for one object.
    things: dict[str, Any] = {
        name: lambda *_, _answer=answer, **__: _answer for name, answer in answers_of_cuda().items()
    }
    refused = ((name, getattr(cuda, name, None)) for name in _REFUSED_FUNCTIONS)
    things.update((name, refused_function(f"torch.cuda.{name}", one)) for name, one in refused)
    classes = ((name, getattr(cuda, name, None)) for name in _REFUSED_CLASSES)
    things.update((name, refused_class(f"torch.cuda.{name}", one)) for name, one in classes if one is not None)
    things.update(
        init=_set_up,
        is_initialized=lambda: _state.is_set_up,
        _lazy_init=_lazy_init,
        _lazy_call=lambda call, **_: call(),
        device_count=num_devices,
        current_device=current_device,
        set_device=set_device,
        device=Device,
        device_of=DeviceOf,
        _CudaDeviceProperties=DeviceProperties,
        Event=Event,
        Stream=Stream,
        ExternalStream=ExternalStream,
        stream=lambda stream: StreamContext(stream),
        StreamContext=StreamContext,
        default_generators=(default,) * num_devices(),
        manual_seed=lambda seed: default.manual_seed(int(seed)) and None,
        manual_seed_all=lambda seed: default.manual_seed(int(seed)) and None,
        seed=lambda: default.seed() and None,
        seed_all=lambda: default.seed() and None,
        initial_seed=lambda: default.initial_seed(),
        get_rng_state=lambda device=None: default.get_state(),
        get_rng_state_all=lambda: [default.get_state()],
        set_rng_state=lambda state, device=None: default.set_state(state) and None,
        set_rng_state_all=lambda states: [default.set_state(state) for state in states] and None,
        _is_clary=True,
    )
    return things


def _set_up() -> None:
    _state.is_set_up = True


def _lazy_init() -> None:
    what = asks_for_a_gpu(sys._getframe(1))
    if what is not None:
        raise refusal(what)
    _set_up()


def _of_memory() -> dict[str, Any]:
    """Return the functions that only `torch.cuda.memory` has, by name; they report empty records of GPU memory."""

    def dump(filename: Any = "dump_snapshot.pickle", *_: Any, **__: Any) -> None:
        with open(filename, "wb") as file:
            pickle.dump(snapshot(), file)

    def snapshot(*_: Any, **__: Any) -> dict[str, Any]:
        return {"segments": [], "device_traces": []}

    return {"_record_memory_history": lambda *_, **__: None, "_snapshot": snapshot, "_dump_snapshot": dump}
