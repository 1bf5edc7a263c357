"""Recording of calls of torch's process groups: operation, elements, type, begin and end.

Where: `torch_hooks.install` wraps the methods of `ProcessGroup`, which every Python call of torch.distributed uses; its
wrapper of `wait` records the waits. The first error ends the recording, and is only logged, at debug level.

[Note: what is not seen]
Calls from C++ are not recorded. Functional collectives are recorded before they reach C++ (`functional_hooks`). The
buckets of DistributedDataParallel are recorded as one operation `gradients` per backward pass, from its begin to its
end; its wait begins as soon as all gradients are computed. Groups that are Python classes with their own methods
(smddp) record themselves. With backends that do not block the host, such as NCCL, a finished wait means that the
operation is queued.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import sys
import time
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

from clary.contract.collective_records import (
    DTYPE_CODES,
    ENTERED,
    FAILED,
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
    GroupFacts,
)
from clary.train.operation_record import is_wanted, record_of_process

GRADIENTS_KIND = "DDP"
_RING = NUM_ROWS - 1
# Method of ProcessGroup -> operation, index of the argument with this rank's input or its share of the result.
_METHODS: dict[str, tuple[str, int | None]] = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce_coalesced", 0),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "allgather": ("all_gather", 1),
    "_allgather_base": ("all_gather_into_tensor", 1),
    "all_gather_single": ("all_gather_into_tensor", 1),
    "allgather_coalesced": ("all_gather_coalesced", 1),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", 1),
    "all_gather_single_coalesced": ("all_gather_into_tensor_coalesced", 1),
    "gather": ("gather", 1),
    "scatter": ("scatter", 0),
    "reduce_scatter": ("reduce_scatter", 0),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 0),
    "reduce_scatter_single": ("reduce_scatter_tensor", 0),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", 0),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced", 0),
    "alltoall": ("all_to_all", 1),
    "alltoall_base": ("all_to_all_single", 1),
    "all_to_all_single": ("all_to_all_single", 1),
    "barrier": ("barrier", None),
    "send": ("send", 0),
    "recv": ("recv", 0),
    "recv_anysource": ("recv", 0),
}
_MESSAGE_CODES = (OPERATION_CODES["send"], OPERATION_CODES["recv"])
_PEER = 1  # index of an argument of a send or receive
_MOST_WORKS = 1024  # maximum number of Work objects that are tracked at once

_log = logging.getLogger("clary.steps")
# Memory, offset of a group's rows, generator of operation numbers, weak reference with a callback at the group's end.
_Slot = tuple[Any, int, Callable[[], int], Any]
_NOWHERE: _Slot = (None, 0, int, None)
Mark = Callable[[Callable[..., Any]], Callable[..., Any]]


class CollectiveCalls:
    """The rows of this process, which the wrappers below share.

    Attributes:
        memory, words: the record's memory as bytes and as 8-byte numbers; None before there is a record.
        works: row of each operation, by `id` of the Work on which the caller waits; the Work itself is not kept alive.
        works_of_rows: the inverse mapping; a reused row maps to the newest operation's Work.
        outputs: row and number of functional operations, by the address of their results.
        operators: torch's wrapped operators, kept alive since torch identifies some by their `id`.
    """

    def __init__(self) -> None:
        self.slots: dict[int, _Slot] = {}  # slots by group
        self.message_slots: dict[int, _Slot] = {}  # slots of sends and receives, by group
        self.works: dict[int, int] = {}
        self.works_of_rows: dict[int, int] = {}
        self.outputs: dict[int, tuple[int, int]] = {}
        self.operators: list[object] = []
        self.dtypes: dict[object, int] = {}
        self._reducers: dict[int, tuple[int, Callable[[], int]]] = {}  # row, number generator; by `id` of the reducer
        self._num_reducers = 0  # number of reducers made so far, including freed ones
        self._prepared: list[int] = []
        self._passing: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Reset in a forked process. Tables stay the same objects, since wrappers refer to them."""
        self.memory: Any = None
        self.words: Any = None
        self._is_on = is_wanted()
        for table in (self.slots, self.message_slots, self.works, self.works_of_rows, self.outputs, self._reducers):
            table.clear()
        self._num_reducers = 0
        self._prepared.clear()
        self._passing.clear()

    def begin_group(self, group: Any, slots: dict[int, _Slot]) -> _Slot:
        """Return the slot for a group's operations; never raises."""
        if not self._is_on:
            return _NOWHERE
        try:
            facts = facts_of(group, is_message=slots is self.message_slots)
            # A group without a name cannot be matched between ranks.
            rows = self._rows_of(facts) if facts.name else 0
            key = id(group)
            # An `id` may be reused, so the slot is removed when the group is freed.
            gone = weakref.ref(group, lambda _: slots.pop(key, None))
            slots[key] = (self.memory if rows else None, rows, itertools.count(1).__next__, gone)
            return slots[key]
        except Exception as error:  # noqa: BLE001 - boundary: debug hook
            return self.give_up(error)

    def give_up(self, error: Exception) -> _Slot:
        """Stop recording."""
        self._is_on = False
        self.slots.clear()
        self.message_slots.clear()
        _log.debug("collectives are not recorded any more: %s", error)
        return _NOWHERE

    def ended(self, row: int, is_good: bool = True) -> None:
        """Record the end of an operation."""
        if self.words is None:  # the process was forked meanwhile
            return
        if not is_good:
            self.memory[row + STATE_OFFSET] = FAILED
        self.words[(row + FINISHED_OFFSET) // NUMBER.size] = time.monotonic_ns()

    def sweep(self) -> None:
        """Drop Work objects whose rows now belong to other operations."""
        # A copy: another thread may add to it.
        kept = {work: row for row, work in self.works_of_rows.copy().items() if self.works.get(work) == row}
        self.works.clear()
        self.works.update(kept)

    # Gradients of DistributedDataParallel.

    def know_reducer(self, reducer: object, group: Any) -> None:
        """Record a reducer of a model's gradients, and its group."""
        if not self._is_on:
            return
        try:
            facts = facts_of(group, is_message=False)
            name = f"{facts.name}/{self._num_reducers}"  # all ranks make models in the same order
            self._num_reducers += 1
            rows = self._rows_of(facts._replace(name=name, kind=GRADIENTS_KIND))
            self._reducers[id(reducer)] = (rows, itertools.count(1).__next__)
        except Exception as error:  # noqa: BLE001 - boundary: debug hook
            self.give_up(error)

    def prepare(self, reducer: object) -> None:
        """Record that the next backward pass reduces gradients."""
        if id(reducer) in self._reducers and id(reducer) not in self._prepared:
            self._prepared.append(id(reducer))

    def begin_gradients(self) -> bool:
        """Record the begin of a backward pass; return whether it reduces gradients."""
        if not self._prepared or not self._is_on:
            return False
        prepared, self._prepared = self._prepared, []
        for key in prepared:
            rows, following = self._reducers[key]
            if rows:
                number = following()
                row = rows + (number & _RING) * ROW_BYTES
                facts = (number, time.monotonic_ns(), 0, 0, NO_PEER, OPERATION_CODES["gradients"], 0)
                ROW.pack_into(self.memory, row, *facts, UNDER_WAY, number)
                self._passing.append(row)
        return True

    def wait_for_gradients(self) -> None:
        """Record that all gradients are computed: the rest of the pass is a wait for other ranks."""
        for row in self._passing:
            self.memory[row + STATE_OFFSET] = WAITED_FOR

    def end_gradients(self, is_good: bool) -> None:
        """Record the end of the backward pass."""
        passing, self._passing = self._passing, []
        for row in passing:
            self.ended(row, is_good)

    def _rows_of(self, facts: GroupFacts) -> int:
        distributed = sys.modules["torch.distributed"]
        record = record_of_process(distributed.get_rank() if distributed.is_initialized() else max(facts.rank, 0))
        if record is None:
            self._is_on = False
            return 0
        if self.memory is None:
            self.memory = record.memory
            self.words = memoryview(record.memory).cast("q")
            torch = sys.modules["torch"]
            self.dtypes |= {getattr(torch, name): code for name, code in DTYPE_CODES.items() if hasattr(torch, name)}
        return record.begin_group(facts) or 0


def wrap_groups(calls: CollectiveCalls, mark: Mark) -> list[FunctionType]:
    """Wrap every operation of torch's groups to record it; do nothing if torch has no groups or no records are wanted.

    Args:
        mark: function that marks a wrapper as ours and excludes it from compilation.

    Returns: the wrappers, whose code objects have the names of torch's methods.
    """
    distributed = sys.modules.get("torch.distributed")
    kind = getattr(distributed, "ProcessGroup", None)
    wrappers: list[FunctionType] = []
    if kind is None or not is_wanted():
        return wrappers
    for name, (operation, place) in _METHODS.items():
        function = vars(kind).get(name)
        if callable(function):
            made = _recorded(function, calls, OPERATION_CODES[operation], place)
            # The name of the native method; see `_timed_wait` in `torch_hooks`.
            made.__code__ = made.__code__.replace(co_name=name)
            setattr(kind, name, mark(made))
            wrappers.append(made)
    _wrap_reducers(calls, mark)
    return wrappers


def _recorded(function: Callable[..., Any], calls: CollectiveCalls, operation: int, place: int | None) -> Any:
    # [Note: cost] A program calls thousands of operations a second. All code is in one function, with names bound here,
    # which halves the cost.
    is_message = operation in _MESSAGE_CODES
    slots = calls.message_slots if is_message else calls.slots
    works, works_of_rows, dtypes = calls.works, calls.works_of_rows, calls.dtypes
    pack_row, now_ns, sizes = ROW.pack_into, time.monotonic_ns, (AttributeError, IndexError, TypeError)

    @functools.wraps(function)
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        memory, rows, following, _ = slots.get(id(self)) or calls.begin_group(self, slots)
        if memory is None:
            return function(self, *arguments, **keywords)
        try:
            count, dtype, peer = 0, 0, NO_PEER
            if place is not None:
                try:
                    item = arguments[place]
                    while type(item) is list:
                        item = item[0]
                    count, dtype = item.numel(), dtypes.get(item.dtype, 0)
                    if type(count) is not int:  # a symbol in a traced program, which must not be evaluated
                        count, dtype = 0, 0
                    if is_message and len(arguments) > _PEER + 1:  # arguments: tensors, peer, tag
                        peer = arguments[_PEER]
                except sizes:
                    count = 0  # keyword arguments, empty lists, no tensors
            number = following()
            row = rows + (number & _RING) * ROW_BYTES
            pack_row(memory, row, number, now_ns(), 0, count, peer, operation, dtype, ENTERED, number)
        except Exception as error:  # noqa: BLE001 - boundary: debug hook
            calls.give_up(error)
            return function(self, *arguments, **keywords)
        try:
            work = function(self, *arguments, **keywords)
        except BaseException:
            calls.ended(row, is_good=False)
            raise
        if work is None:
            works_of_rows[row] = 0
            calls.ended(row)
            return work
        memory[row + STATE_OFFSET] = UNDER_WAY
        key = id(work)
        works[key] = row
        works_of_rows[row] = key
        if len(works) > _MOST_WORKS:
            calls.sweep()
        return work

    return call


def _wrap_reducers(calls: CollectiveCalls, mark: Mark) -> None:
    module = sys.modules.get("torch.nn.parallel.distributed")
    parallel: Any = getattr(module, "DistributedDataParallel", None)
    reducers: Any = getattr(sys.modules.get("torch.distributed"), "Reducer", None)
    make = vars(parallel).get("_ddp_init_helper") if parallel is not None else None
    prepare = vars(reducers).get("prepare_for_backward") if reducers is not None else None
    if make is None or prepare is None:
        return

    @functools.wraps(make)
    def _ddp_init_helper(self: Any, *arguments: Any, **keywords: Any) -> Any:
        result = make(self, *arguments, **keywords)
        calls.know_reducer(getattr(self, "reducer", None), getattr(self, "process_group", None))
        return result

    @functools.wraps(prepare)
    def prepare_for_backward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        calls.prepare(self)
        return prepare(self, *arguments, **keywords)

    parallel._ddp_init_helper = mark(_ddp_init_helper)
    reducers.prepare_for_backward = mark(prepare_for_backward)


def facts_of(group: Any, *, is_message: bool) -> GroupFacts:
    """Return a group's properties from torch: name, size and ranks."""
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    world = c10d._world
    known = world.pg_map.get(group)
    name = world.pg_names.get(group)
    if not name:
        with contextlib.suppress(AttributeError, RuntimeError):  # a group that torch did not make has no name
            name = group.group_name
    return GroupFacts(
        name=str(name or ""),
        kind=str(known[0]) if known else "",
        size=group.size(),
        rank=group.rank(),
        ranks=tuple(sorted(world.pg_group_ranks.get(group, ()))),
        is_point_to_point=is_message,
    )
