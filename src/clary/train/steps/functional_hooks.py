"""Recording of functional collectives, including DTensor's, at their execution, and timing of their waits.

Where: `torch_hooks.install` calls it. Rows and numbers continue those of the group's other operations
(`collective_hooks`).

[Note: where these hooks are]
A functional collective goes from Python to C++ through an operator, an object in `torch.ops` that calls its attribute
`_op`. The hooks replace `_op`. Tracers (dynamo, export, make_fx, FakeTensor) identify operators by object, hash and
schema, and never read `_op`. Alternatives fail: if functions of `_functional_collectives` were wrapped, tracers would
trace into the wrappers; if a Python kernel were added to the dispatcher, tracers would see it, and it also costs ten
times as much.

[Note: what is counted]
Tensor classes and modes written in Python receive an operator first and call it again; tracers call it with their own
tensors. So a call is counted only with plain tensors and outside of all modes: once, at its execution. Compiled graphs
are counted if they call operators from Python. Calls from C++ to C++ are not seen. Older versions of torch make such
calls in some backward passes, which newer versions implement in Python. Sends and receives, which occur in compiled
graphs alone, are not counted.

For groups that are Python classes, C++ calls the methods of the class, which record themselves or are wrapped.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from clary.contract.collective_records import (
    ENTERED,
    FINISHED_OFFSET,
    NO_PEER,
    NUM_ROWS,
    NUMBER,
    OPERATION_CODES,
    ROW,
    ROW_BYTES,
    STATE_OFFSET,
    UNDER_WAY,
    WAITED_FOR,
)
from clary.train.operation_record import is_wanted
from clary.train.steps.collective_hooks import CollectiveCalls
from clary.train.steps.step_clock import COMMUNICATION, StepClock

# Operator -> operation. The first argument is a rank's input, the last positional argument the group.
_OPERATORS = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce_coalesced",
    "all_reduce_coalesced_": "all_reduce_coalesced",
    "all_gather_into_tensor": "all_gather_into_tensor",
    "all_gather_into_tensor_out": "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor": "reduce_scatter_tensor",
    "reduce_scatter_tensor_out": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "all_to_all_single",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")
_WAIT = ("_c10d_functional", "wait_tensor")
_DTENSOR = ("_dtensor", "shard_dim_alltoall")  # this collective waits for its own result
_NUM_SHARES = 2  # index of a scattering operator's argument: number of shares, one per rank
_RING = NUM_ROWS - 1
_MOST_OUTPUTS = 1024  # maximum number of outputs that are tracked at once
# Errors from wrong arguments, which torch reports itself.
_NOT_OURS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)

_log = logging.getLogger("clary.steps")
ClockHere = Callable[[], StepClock | None]


class Operator:
    """Replacement of an operator's function; each instance has its own class with its own `__call__`.

    Args:
        function: the C++ function, whose attributes and hash the instance copies, since an operator's hash is its
            function's.
    """

    function: Any = None  # `__getattr__` may read it before it is set

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__module__ = getattr(function, "__module__", __name__)

    def __hash__(self) -> int:
        return hash(self.function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # the function cannot be pickled: it raises the error that callers expect
        return self.function.__reduce_ex__(protocol)

    def __deepcopy__(self, _: object) -> Operator:
        return self


class _Torch:
    """The functions of torch that decide whether to count a call. Raises: AttributeError if torch lacks one."""

    def __init__(self, torch: Any) -> None:
        core = torch._C
        self.tensor = torch.Tensor
        self.group = torch.distributed.ProcessGroup
        self.resolve = core._distributed_c10d._resolve_process_group
        self.num_modes = core._len_torch_dispatch_stack
        self.has_function_mode = core._is_torch_function_mode_enabled
        self.is_traced = core._get_tracing_state
        self._has_functions = core._is_torch_function_enabled
        self._no_dispatch = core._disabled_torch_dispatch_impl
        self._no_function = core._disabled_torch_function_impl

    def is_plain(self, kind: Any) -> bool:
        """Return whether tensors of a class go directly to C++. Raises: AttributeError if it is no tensor class."""
        if kind.__torch_dispatch__ is not self._no_dispatch:
            return False
        return kind.__torch_function__ is self._no_function or not self._has_functions()


def wrap_operators(calls: CollectiveCalls, clock_here: ClockHere) -> None:
    """Wrap functional collectives, to record them and time their waits; do nothing if torch lacks them.

    Args:
        clock_here: returns the clock in the measured thread, None in other threads.
    """
    try:
        _wrap_all(sys.modules["torch"], calls, clock_here)
    except Exception as error:  # noqa: BLE001 - boundary: debug hook
        _log.debug("functional collectives are not recorded: %s", error)


def _wrap_all(torch: Any, calls: CollectiveCalls, clock_here: ClockHere) -> None:
    asked = _Torch(torch)
    _wrap(torch, *_WAIT, calls, lambda function: _timed_wait(function, calls, asked, clock_here))
    if not is_wanted():
        _wrap(torch, *_DTENSOR, calls, lambda function: _timed(function, clock_here))
        return
    for name, operation in _OPERATORS.items():
        code = OPERATION_CODES[operation]
        has_shares = operation.startswith("reduce_scatter")

        def recorded(function: Any, code: int = code, has_shares: bool = has_shares) -> Any:
            return _recorded(function, calls, asked, code, has_shares=has_shares)

        for namespace in _NAMESPACES:
            _wrap(torch, namespace, name, calls, recorded)
    code = OPERATION_CODES["all_to_all_single"]
    _wrap(
        torch,
        *_DTENSOR,
        calls,
        lambda function: _recorded(_timed(function, clock_here), calls, asked, code, is_over=True),
    )


def _wrap(torch: Any, namespace: str, name: str, calls: CollectiveCalls, wrapped: Callable[[Any], Any]) -> None:
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None or isinstance(packet._op, Operator):
        return
    for item in (packet, *(getattr(packet, overload) for overload in packet.overloads())):
        # A static method, which the interpreter calls directly: a method in between would double the cost.
        kind = type(Operator.__name__, (Operator,), {"__call__": staticmethod(wrapped(item._op))})
        item._op = kind(item._op)
        calls.operators.append(item._op)
    # TorchScript identifies an operator by the `id` of its function.
    register = getattr(sys.modules.get("torch.jit._builtins"), "_register_builtin", None)
    if register is not None:
        register(packet._op, f"{namespace}::{name}")


def _recorded(
    function: Any,
    calls: CollectiveCalls,
    asked: _Torch,
    operation: int,
    *,
    has_shares: bool = False,
    is_over: bool = False,
) -> Callable[..., Any]:
    """Return the wrapper that records an operation.

    Args:
        has_shares: whether a rank's input consists of one share per rank; if so, the elements of one share are counted.
        is_over: whether the operation has ended when the call returns.
    """
    # See [Note: cost] in `collective_hooks`.
    slots, dtypes, outputs = calls.slots, calls.dtypes, calls.outputs
    tensor, group_kind, is_plain, resolve = asked.tensor, asked.group, asked.is_plain, asked.resolve
    num_modes, has_function_mode, is_traced = asked.num_modes, asked.has_function_mode, asked.is_traced
    pack_row, now_ns = ROW.pack_into, time.monotonic_ns

    def call(*arguments: Any, **keywords: Any) -> Any:
        group: Any = None
        try:
            item = arguments[0]
            if type(item) is tensor:
                is_run = True
            # a single tensor whose class intercepts the operator suffices to intercept the call
            elif isinstance(item, list | tuple):
                is_run = all(type(other) is tensor or is_plain(type(other)) for other in item)
                item = item[0]
            else:
                is_run = is_plain(type(item))
            if is_run and not num_modes() and not has_function_mode() and not item.is_meta:
                group = keywords.get("group_name", arguments[-1]) if keywords else arguments[-1]
                if type(group) is str:
                    group = resolve(group)
        except _NOT_OURS:
            group = None
        if type(group) is not group_kind:
            return function(*arguments, **keywords)
        memory, rows, following, _ = slots.get(id(group)) or calls.begin_group(group, slots)
        if memory is None:
            return function(*arguments, **keywords)
        try:
            count = 0 if is_traced() else item.numel()  # `torch.jit.trace` would record `numel` into its graph
            if has_shares:
                count //= (arguments[_NUM_SHARES] if len(arguments) > _NUM_SHARES else keywords["group_size"]) or 1
            if type(count) is not int:  # a symbol, which must not be evaluated
                count = 0
            number = following()
            row = rows + (number & _RING) * ROW_BYTES
            dtype = dtypes.get(item.dtype, 0)
            pack_row(memory, row, number, now_ns(), 0, count, NO_PEER, operation, dtype, ENTERED, number)
        except Exception as error:  # noqa: BLE001 - boundary: debug hook
            calls.give_up(error)
            return function(*arguments, **keywords)
        try:
            result = function(*arguments, **keywords)
        except BaseException:
            calls.ended(row, is_good=False)
            raise
        if is_over:
            calls.ended(row)
            return result
        memory[row + STATE_OFFSET] = UNDER_WAY
        try:
            # By address, as in torch, since several tensor objects may share memory.
            if type(result) is tensor:
                outputs[result.data_ptr()] = (row, number)
            else:
                outputs.update((item.data_ptr(), (row, number)) for item in result)
        except _NOT_OURS:  # functorch's tensors without memory
            return result
        if len(outputs) > _MOST_OUTPUTS:
            _sweep(calls)
        return result

    return call


def _sweep(calls: CollectiveCalls) -> None:
    """Drop outputs whose rows have ended or now belong to other operations."""
    kept = {address: output for address, output in calls.outputs.copy().items() if _is_open(calls, *output)}
    calls.outputs.clear()
    calls.outputs.update(kept)


def _is_open(calls: CollectiveCalls, row: int, number: int) -> bool:
    """Return whether a row still belongs to operation `number`, without a recorded end."""
    words = calls.words
    if words is None:  # in a forked process
        return False
    return bool(words[row // NUMBER.size] == number and not words[(row + FINISHED_OFFSET) // NUMBER.size])


def _timed_wait(function: Any, calls: CollectiveCalls, asked: _Torch, clock_here: ClockHere) -> Callable[..., Any]:
    """Return the wrapper that times the wait for an operation's result."""
    outputs = calls.outputs
    tensor, is_plain = asked.tensor, asked.is_plain
    num_modes, has_function_mode = asked.num_modes, asked.has_function_mode

    def call(*arguments: Any, **keywords: Any) -> Any:
        clock, row = None, 0
        try:
            item = arguments[0]
            is_run = not num_modes() and not has_function_mode() and (type(item) is tensor or is_plain(type(item)))
            if is_run and not item.is_meta:
                clock = clock_here()
                found = outputs.pop(item.data_ptr(), None)
                if found is None and item.storage_offset():  # a part of a result
                    found = outputs.pop(item.untyped_storage().data_ptr(), None)
                if found is not None and _is_open(calls, *found):
                    row = found[0]
        except _NOT_OURS:
            row = 0
        if clock is None and not row:
            return function(*arguments, **keywords)
        if row and clock is not None:
            calls.memory[row + STATE_OFFSET] = WAITED_FOR
        depth = clock.enter(COMMUNICATION) if clock is not None else 0
        is_good = False
        try:
            result = function(*arguments, **keywords)
            is_good = True
            return result
        finally:
            if clock is not None:
                clock.leave(depth)
            if row:
                calls.ended(row, is_good)

    return call


def _timed(function: Any, clock_here: ClockHere) -> Callable[..., Any]:
    """Return the wrapper that times an operation that waits for its own result."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        clock = clock_here()
        if clock is None:
            return function(*arguments, **keywords)
        depth = clock.enter(COMMUNICATION)
        try:
            return function(*arguments, **keywords)
        finally:
            clock.leave(depth)

    return call
