"""The costs of a model's modules, measured in one forward pass.

Where: the first step runs its function once on the first microbatch for the trace; `plan` uses the costs.

By default a trace counts work, which is equal in every run: floating-point operations of matrix products, convolutions
and attention, and the bytes of modules' outputs, at a fixed number of operations per byte. With `measures_times`, it
measures seconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from clary.train.parallel.partition.plan import ModuleCost
from clary.train.parallel.pipeline.messages import take_tensors

_OPERATIONS_A_BYTE = 4.0  # operations that count as much as moving one byte; most processors do about ten


@dataclass
class _Sum:
    """The running sum of one module's cost, without its children."""

    work: float = 0.0
    output_bytes: int = 0


@dataclass
class _Trace:
    clock: Callable[[], float]
    sums: dict[str, _Sum] = field(default_factory=dict)  # in the order of first calls
    stack: list[tuple[str, float, float]] = field(default_factory=list)  # name, start, time in children


def trace_costs(root: torch.nn.Module, run: Callable[[], object], *, measures_times: bool = False) -> list[ModuleCost]:
    """Run a model once and return its modules' costs, in the order of their first calls.

    Modules that were not called come last. Buffers (running statistics) and random states are restored afterwards;
    gradients are not computed.

    Args:
        run: calls the model; its errors are propagated.
        measures_times: measure seconds instead of counting operations.
    """
    names = {module: name for name, module in root.named_modules()}
    counter = FlopCounterMode(display=False)
    trace = _Trace(time.perf_counter if measures_times else lambda: float(counter.get_total_flops()))

    def enter(module: torch.nn.Module, _inputs: Any) -> None:
        trace.sums.setdefault(names[module], _Sum())
        trace.stack.append((names[module], trace.clock(), 0.0))

    def leave(module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        name, begun, in_children = trace.stack.pop()
        spent = trace.clock() - begun
        num_bytes = _num_bytes(output)
        one = trace.sums[name]
        one.work += spent - in_children + (0 if measures_times else _OPERATIONS_A_BYTE * num_bytes)
        one.output_bytes += num_bytes
        if trace.stack:
            parent, parent_begun, spent_before = trace.stack.pop()
            trace.stack.append((parent, parent_begun, spent_before + spent))

    with contextlib.ExitStack() as stack:
        stack.enter_context(_as_it_was(root))
        for module in names:
            for handle in (module.register_forward_pre_hook(enter), module.register_forward_hook(leave)):
                stack.callback(handle.remove)
        stack.enter_context(torch.no_grad())
        if not measures_times:
            stack.enter_context(counter)
        run()
    return _costs(root, trace.sums)


def costs_by_size(root: torch.nn.Module) -> list[ModuleCost]:
    """Return modules' costs by their parameters alone, in the order of the tree, for models that are not run."""
    return _costs(root, {})


def _costs(root: torch.nn.Module, sums: dict[str, _Sum]) -> list[ModuleCost]:
    holders: dict[int, int] = {}
    for module in root.modules():
        for parameter in module.parameters(recurse=False):
            holders[id(parameter)] = holders.get(id(parameter), 0) + 1
    modules = dict(root.named_modules())
    wholes = indivisible_modules(root)
    costs = []
    for name in [*sums, *(name for name in modules if name not in sums)]:
        if any(one and name.startswith(f"{one}.") for one in wholes):
            continue  # counted with the module that holds it
        is_whole = name in wholes
        own = list(modules[name].parameters(recurse=is_whole))
        if not own and not is_whole and any(True for _ in modules[name].children()):
            continue  # a container: it runs on the rank of its children or parent
        one = _sum_of(name, sums, is_whole=is_whole)
        num_bytes = sum(parameter.numel() * parameter.element_size() for parameter in own)
        shared = frozenset(_number(root, parameter) for parameter in own if holders[id(parameter)] > 1)
        costs.append(ModuleCost(name, one.work, num_bytes + one.output_bytes, shared))
    return costs


def indivisible_modules(root: torch.nn.Module) -> frozenset[str]:
    """Return the paths of modules with the attribute `is_indivisible`.

    Such a module must lie on one rank with all modules below it, since it reads their parameters without calling them.
    """
    return frozenset(name for name, module in root.named_modules() if getattr(module, "is_indivisible", False))


def _sum_of(name: str, sums: dict[str, _Sum], *, is_whole: bool) -> _Sum:
    """Return the cost of a module, with its children's if it is indivisible."""
    if not is_whole:
        return sums.get(name, _Sum())
    parts = [one for other, one in sums.items() if other == name or other.startswith(f"{name}.")]
    return _Sum(sum(one.work for one in parts), sum(one.output_bytes for one in parts))


def _number(root: torch.nn.Module, parameter: torch.Tensor) -> int:
    """Return a parameter's index among all parameters, which is the same on every rank."""
    return next(place for place, one in enumerate(root.parameters()) if one is parameter)


def _num_bytes(value: Any) -> int:
    tensors: list[torch.Tensor] = []
    take_tensors(value, tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@contextlib.contextmanager
def _as_it_was(root: torch.nn.Module) -> Any:
    """Restore buffers and random number generators when the block ends."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in root.buffers()]
    state = torch.get_rng_state()
    device_states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if device_states:
            torch.cuda.set_rng_state_all(device_states)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
