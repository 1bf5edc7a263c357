"""Operations of a rank's trace by kind, on the rank's own clock. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from clary.contract.deep_profiles import RankProfile

MAX_EVENTS = 5_000_000  # maximum number of events read; a longer trace is cut
MAX_TIME_US = 1e18  # largest accepted time of an event, about 600 times the present Unix time
_LOADER = "enumerate(DataLoader)#"  # torch.utils.data.DataLoader's own mark around `__next__`
_ASYNC_PREFIXES = ("gloo:", "mpi:", "ucc:", "xccl:", "smddp:")  # process groups' marks around their threads' work
_ISSUE_PREFIXES = ("c10d::", "_c10d_functional::", "c10d_functional::")
_PLUMBING = ("record_param_comms", "c10d_functional::wait_tensor", "_c10d_functional::wait_tensor")
_NODE_PREFIXES = ("autograd::", "torch::autograd::")
_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_op")
_CALL_CATEGORIES = ("cuda_runtime", "cuda_driver")  # calls by which the processor controls a GPU
_COLLECTIVE_KERNELS = ("nccl", "nvshmem")  # parts of the names of process groups' kernels
_NO_NUMBER = -1
_LAUNCH = "launch"  # part of the names of calls that start kernels: cudaLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; times are Unix microseconds."""

    name: str
    begin: float
    end: float
    thread: object = None
    asked: float | None = None  # time of a kernel's launch, before it runs; None if unknown


@dataclass
class RankTrace:
    """The operations of one rank.

    Attributes:
        operations: operations of the processor, including nested operations.
        kernels: kernels of the accelerator, without communication.
        communication: work of collectives: a process group's threads and the program's calls, or an accelerator's
            kernels.
        arrivals: calls of the program, or kernels of the accelerator, with which the rank reaches each collective.
        completions: work of a process group or an accelerator that completes a collective, in order.
        loading: waits for the data loader.
    """

    profile: RankProfile
    operations: list[Operation] = field(default_factory=list)
    kernels: list[Operation] = field(default_factory=list)
    communication: list[Operation] = field(default_factory=list)
    arrivals: list[Operation] = field(default_factory=list)
    completions: list[Operation] = field(default_factory=list)
    loading: list[Operation] = field(default_factory=list)
    is_cut: bool = False

    @property
    def bounds(self) -> tuple[float, ...]:
        """Times of the window's beginning and of the end of each step."""
        return tuple(bound / 1000 for bound in self.profile.bounds_ns)

    def step_at(self, moment: float) -> int | None:
        """Return the number of the step at a moment; None outside the window."""
        bounds = self.bounds
        index = bisect_right(bounds, moment) - 1
        return self.profile.first_step + index if 0 <= index < len(bounds) - 1 else None


def read_trace(profile: RankProfile, events: Iterable[Mapping[str, Any]], base_us: float = 0.0) -> RankTrace:
    """Sort the events of a rank's trace by kind; `base_us` is added to their times.

    Args:
        profile: profile of the rank; kept with the trace.
        events: events of the framework's trace. A user's file contains them: malformed events are skipped, and at most
            MAX_EVENTS are read.
        base_us: added to each time, in microseconds, to make it Unix time.
    """
    trace = RankTrace(profile=profile)
    launches: dict[int, float] = {}  # correlation number of a kernel and its launch -> time of the launch
    kernels: list[tuple[Operation, int]] = []  # kernels of collectives, each with its correlation number
    num_events = 0
    for event in events:
        if event.get("ph") != "X":
            continue
        begin, duration = event.get("ts"), event.get("dur")
        if not is_time(begin) or not is_time(duration):
            continue
        num_events += 1
        if num_events > MAX_EVENTS:
            trace.is_cut = True
            break
        name = str(event.get("name", ""))
        category = str(event.get("cat", ""))
        if category in _CALL_CATEGORIES and _LAUNCH in name.lower():
            launches[_correlation(event)] = base_us + begin
        thread = (str(event.get("pid")), str(event.get("tid")))
        operation = Operation(name, base_us + begin, base_us + begin + max(0.0, duration), thread)
        if category in _DEVICE_CATEGORIES and _is_collective_kernel(name):
            kernels.append((operation, _correlation(event)))
        else:
            _sort_in(trace, category, operation)
    launches.pop(_NO_NUMBER, None)
    if kernels:
        # Calls of the processor only queue collectives; the accelerator's kernels show when the rank reaches them.
        placed = [replace(kernel, asked=launches.get(number)) for kernel, number in kernels]
        trace.communication = [item for item in trace.communication if not is_collective_call(item.name)] + placed
        trace.arrivals = list(placed)
        trace.completions += placed
    for operations in (trace.arrivals, trace.completions):
        operations.sort(key=lambda operation: operation.begin)
    return trace


def is_time(value: Any) -> TypeGuard[float]:
    """Whether a value of an event is a usable time: programs may write any value."""
    return isinstance(value, int | float) and abs(value) < MAX_TIME_US


def shifted(trace: RankTrace, offset_us: float) -> RankTrace:
    """Move the times of all operations of a trace that was read before its base time was known."""
    if offset_us:
        for name in ("operations", "kernels", "communication", "arrivals", "completions", "loading"):
            setattr(trace, name, [_moved(item, offset_us) for item in getattr(trace, name)])
    return trace


def self_times(operations: Sequence[Operation]) -> list[tuple[Operation, float, bool]]:
    """Return each operation with its time outside nested operations, and whether it has no nested operations."""
    by_thread: dict[object, list[Operation]] = {}
    for operation in operations:
        by_thread.setdefault(operation.thread, []).append(operation)
    found: list[tuple[Operation, float, bool]] = []
    for members in by_thread.values():
        members.sort(key=lambda operation: (operation.begin, -operation.end))
        stack: list[list[Any]] = []  # operation, time of its children, whether it has children

        for operation in members:
            while stack and stack[-1][0].end <= operation.begin:
                _pop(stack, found)
            if stack and operation.end <= stack[-1][0].end:
                stack[-1][1] += operation.end - operation.begin
                stack[-1][2] = True
            stack.append([operation, 0.0, False])
        while stack:
            _pop(stack, found)
    return found


def is_collective(name: str) -> bool:
    """Whether an operation of the processor belongs to a collective."""
    return name.startswith((*_ISSUE_PREFIXES, *_ASYNC_PREFIXES)) or name in _PLUMBING


def is_collective_call(name: str) -> bool:
    """Whether an operation of the processor calls a collective."""
    return name.startswith(_ISSUE_PREFIXES) and name not in _PLUMBING


def is_work(name: str, *, is_leaf: bool) -> bool:
    """Whether an operation of the processor, including its nested operations, counts as computation.

    Nodes of the backward pass do not count, since their hooks may wait for collectives.
    """
    if is_collective(name):
        return False
    return is_leaf or ("::" in name and not name.startswith(_NODE_PREFIXES))


def _is_collective_kernel(name: str) -> bool:
    return any(word in name.lower() for word in _COLLECTIVE_KERNELS)


def _correlation(event: Mapping[str, Any]) -> int:
    """Return the correlation number that a kernel shares with its launch; -1 for an event without one."""
    facts = event.get("args")
    number = facts.get("correlation") if isinstance(facts, dict) else None
    return number if isinstance(number, int) else _NO_NUMBER


def _moved(item: Operation, offset_us: float) -> Operation:
    asked = None if item.asked is None else item.asked + offset_us
    return Operation(item.name, item.begin + offset_us, item.end + offset_us, item.thread, asked)


def _sort_in(trace: RankTrace, category: str, operation: Operation) -> None:
    name = operation.name
    if category in _DEVICE_CATEGORIES:
        trace.kernels.append(operation)
    elif name.startswith(_LOADER):
        trace.loading.append(operation)
    elif name.startswith(_ASYNC_PREFIXES):
        trace.communication.append(operation)
        trace.completions.append(operation)
    elif category == "cpu_op":
        trace.operations.append(operation)
        if is_collective_call(name):
            trace.communication.append(operation)
            trace.arrivals.append(operation)


def _pop(stack: list[list[Any]], found: list[tuple[Operation, float, bool]]) -> None:
    operation, nested, has_children = stack.pop()
    found.append((operation, max(0.0, operation.end - operation.begin - nested), not has_children))
