"""The compiled core: one build of the library serves every Python (docs/adr/0008).

Functions that must cost little are called through `_door`, a module in CPython's limited API, if it was built and
loads. All other functions, and without `_door` all functions, are called by ctypes. Both ways take the same arguments;
addresses are passed as numbers.

Where: `collective.cores` opens the core over connections that `collective.bootstrap` made; communicator and adapters
call it. Every call releases the interpreter lock while it is in the library, so waiting in one thread stops no other.
Signatures are those of native/include/clary/collectives.h; `interface.Core` says what the methods mean.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char, c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from clary.train._native.errors import error_of
from clary.train._native.interface import Chunks, Code, GroupConnections, Kind, Operation

ABI_VERSION = 1
_LIBRARY_NAME = "libclary_collectives.so"
_FAILURE_TEXT_BYTES = 1024
_EXPLANATION_BYTES = 2048
_COUNTER_NAMES = (
    "operations",
    "bytes_reduced",
    "lane_bytes_sent",
    "lane_bytes_received",
    "sleeps",
    "wakes",
    "operations_in_caller",
    "peer_bytes_read",
)


class _Group(ctypes.Structure):
    """`clary_group`: see the header for each field."""

    _fields_ = (
        ("abi_version", c_uint32),
        ("rank", c_int32),
        ("size", c_int32),
        ("name", c_char_p),
        ("host_of_rank", POINTER(c_int32)),
        ("host_names", POINTER(c_char_p)),
        ("segment_fd", c_int32),
        ("segment_bytes", c_uint64),
        ("slot_bytes", c_uint64),
        ("lane_fds", POINTER(c_int32)),
        ("side_fds", POINTER(c_int32)),
        ("timeout_s", c_double),
        ("link_latency_s", c_double),
        ("link_bytes_per_s", c_double),
        ("algorithm", c_char_p),
    )


class _Failure(ctypes.Structure):
    """`clary_failure`: why a call failed."""

    _fields_ = (("code", c_int32), ("culprit", c_int32), ("text", c_char * _FAILURE_TEXT_BYTES))


class _FailureOfThread(threading.local):
    """Per-thread memory to which the library writes a failure, allocated at the thread's first call."""

    def __init__(self) -> None:
        self.failure = _Failure()
        self.address = ctypes.addressof(self.failure)


_failures = _FailureOfThread()


# Argument types by function, after the communicator; a function that can fail takes a failure's address last.
_LIST = c_void_p  # the address of an array, with one entry per rank
_TAIL = (c_int32, c_double, c_void_p)  # asynchronous, timeout_s, failure
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "all_reduce": (c_int64, (c_void_p, c_void_p, c_uint64, c_int32, c_int32, *_TAIL)),
    "all_gather": (c_int64, (c_void_p, c_void_p, _LIST, c_uint64, c_int32, *_TAIL)),
    "reduce_scatter": (c_int64, (c_void_p, _LIST, c_void_p, c_uint64, c_int32, c_int32, *_TAIL)),
    "broadcast": (c_int64, (c_void_p, c_uint64, c_int32, c_int32, *_TAIL)),
    "reduce": (c_int64, (c_void_p, c_void_p, c_uint64, c_int32, c_int32, c_int32, *_TAIL)),
    "all_to_all": (
        c_int64,
        (c_void_p, _LIST, _LIST, c_void_p, _LIST, _LIST, c_uint64, c_int32, *_TAIL),
    ),
    "gather": (c_int64, (c_void_p, c_void_p, _LIST, c_uint64, c_int32, c_int32, *_TAIL)),
    "scatter": (c_int64, (c_void_p, _LIST, c_void_p, c_uint64, c_int32, c_int32, *_TAIL)),
    "barrier": (c_int64, _TAIL),
    "send": (c_int64, (c_void_p, c_uint64, c_int32, c_int64, c_double, c_void_p)),
    "receive": (c_int64, (c_void_p, c_uint64, c_int32, c_int64, c_double, c_void_p)),
    "wait": (c_int64, (c_int64, c_double, c_void_p, c_void_p)),
    "is_done": (c_int32, (c_int64,)),
    "watch": (None, (c_int64,)),
    "next_watched": (c_int64, (c_double,)),
    "abort": (None, (c_char_p,)),
    "explain": (None, (c_int32, c_uint64, c_char_p, c_uint64)),
    "counters": (c_int32, (c_void_p, c_int32)),
    "destroy": (None, ()),
}


_NO_CHUNKS = Chunks()
# The arguments that a function of `_SIGNATURES` takes from an operation, between the communicator and the failure.
_ARGUMENTS: dict[Kind, Callable[[Operation, Any], tuple[Any, ...]]] = {
    Kind.ALL_REDUCE: lambda o, _: (o.source, o.target, o.count, o.dtype, o.reduction, o.asynchronous, o.timeout_s),
    Kind.ALL_GATHER: lambda o, c: (o.source, o.target, c.targets, o.count, o.dtype, o.asynchronous, o.timeout_s),
    Kind.REDUCE_SCATTER: lambda o, c: (
        (o.source, c.sources, o.target, o.count, o.dtype, o.reduction, o.asynchronous, o.timeout_s)
    ),
    Kind.BROADCAST: lambda o, _: (o.target, o.count, o.dtype, o.root, o.asynchronous, o.timeout_s),
    Kind.REDUCE: lambda o, _: (
        (o.source, o.target, o.count, o.dtype, o.reduction, o.root, o.asynchronous, o.timeout_s)
    ),
    Kind.ALL_TO_ALL: lambda o, c: (
        o.source,
        c.sources,
        c.send_counts,
        o.target,
        c.targets,
        c.receive_counts,
        o.count,
        o.dtype,
        o.asynchronous,
        o.timeout_s,
    ),
    Kind.GATHER: lambda o, c: (o.source, o.target, c.targets, o.count, o.dtype, o.root, o.asynchronous, o.timeout_s),
    Kind.SCATTER: lambda o, c: (o.source, c.sources, o.target, o.count, o.dtype, o.root, o.asynchronous, o.timeout_s),
    Kind.BARRIER: lambda o, _: (o.asynchronous, o.timeout_s),
    Kind.SEND: lambda o, _: (o.source, o.count, o.root, o.tag, o.timeout_s),
    Kind.RECEIVE: lambda o, _: (o.target, o.count, o.root, o.tag, o.timeout_s),
}


def library_path() -> Path:
    """Return the path that the shared library has if it was built: beside this file."""
    return Path(__file__).with_name(_LIBRARY_NAME)


@cache
def door() -> Any:
    """Return the module `_door`; None if it was not built for this Python or does not load."""
    try:
        return importlib.import_module("clary.train._native._door")
    except ImportError:
        return None


@cache
def _calls() -> SimpleNamespace:
    """Return the functions of the library that take a communicator first, by their names without `clary_`."""
    library, fast = _library(), door()
    return SimpleNamespace(
        **{name: getattr(fast, name, None) or getattr(library, f"clary_{name}") for name in _SIGNATURES}
    )


@cache
def _library() -> ctypes.CDLL:
    """Load the library and declare its functions; OSError if it is missing or does not load."""
    library = ctypes.CDLL(str(library_path()))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"clary_{name}")
        function.restype = result
        function.argtypes = (c_void_p, *arguments)
    library.clary_create.restype = c_void_p
    library.clary_create.argtypes = (POINTER(_Group), c_void_p)
    library.clary_segment_bytes.restype = c_uint64
    library.clary_segment_bytes.argtypes = (c_int32, c_uint64)
    library.clary_instruction_set.restype = c_char_p
    library.clary_instruction_set.argtypes = ()
    if hasattr(library, "clary_record"):  # missing from a library that was built before this function existed
        library.clary_record.restype = None
        library.clary_record.argtypes = (c_void_p, c_void_p, c_int32)
    return library


def is_available() -> bool:
    """Whether the library was built for this machine and loads."""
    return _unavailable_reason() is None


@cache
def _unavailable_reason() -> str | None:
    if not library_path().exists():
        return f"{library_path()} was not built"
    try:
        _library()
    except (OSError, AttributeError) as error:
        return f"{library_path()} does not load: {error}"
    return None


def unavailable_reason() -> str | None:
    """Return why there is no compiled core, or None if there is one."""
    return _unavailable_reason()


def segment_bytes(ranks_on_host: int, slot_bytes: int) -> int:
    """Return the size of the memory that the ranks of one host share."""
    return int(_library().clary_segment_bytes(ranks_on_host, slot_bytes))


def instruction_set() -> str:
    """Name the vector instructions that reductions run on: avx512, avx2 or baseline."""
    return str(_library().clary_instruction_set().decode())


class NativeCore:
    """`interface.Core` over the compiled library.

    Args:
        connections: taken over with their descriptors, even if creation fails.

    Raises:
        CollectiveError, ValueError: as `clary_create` reports.
        OSError: the library does not load.
    """

    def __init__(self, connections: GroupConnections) -> None:
        library = _library()
        self.rank = connections.rank
        self.size = connections.size
        self.name = connections.name
        calls = _calls()
        self._operations = [(getattr(calls, kind.name.lower()), _ARGUMENTS[kind]) for kind in Kind]
        self._all_reduce = calls.all_reduce
        self._all_gather = calls.all_gather
        self._reduce_scatter = calls.reduce_scatter
        self._wait = calls.wait
        self._short_ways = door()  # None without `_door`
        self._tensor_ways: Any = None
        self._calls = calls
        self._closing = threading.Lock()
        self._addresses = c_void_p * connections.size
        self._counts = c_uint64 * connections.size
        self._handle: int | None = library.clary_create(ctypes.byref(_group_of(connections)), _failures.address)
        if self._handle is None:
            self._fail(0)

    def know_tensors(self, types: Any, strided: Any, dtypes: dict[Any, int], reductions: dict[int, int]) -> bool:
        """Let the four tensor calls below read torch's tensors.

        Returns: False without `_door`; each of the four calls then returns None.

        Args:
            types: torch.Tensor and torch.nn.Parameter; objects of other types are not read.
            strided: torch's layout of plain memory.
            dtypes: torch's type -> the core's number for it.
            reductions: torch's number of a reduction -> the core's number for it.
        """
        ways = self._short_ways
        if not hasattr(ways, "know_tensors"):  # also a `_door` that was built before this function existed
            return False
        ways.know_tensors(*types, strided, dtypes, reductions)
        self._tensor_ways = ways
        return True

    def record(self, address: int, num_rows: int) -> None:
        """Make the core write operations to rows as in `contract.collective_records`; the memory must outlive it."""
        library = _library()
        if hasattr(library, "clary_record"):
            library.clary_record(self._handle or self._gone(), address, num_rows)

    def run(self, operation: Operation) -> int:
        """Begin an operation and return its ticket, 0 when it is done."""
        chunks = _NO_CHUNKS if operation.chunks is None else self._copied(operation.chunks)
        call, arguments = self._operations[operation.kind]
        ticket: int = call(self._handle or self._gone(), *arguments(operation, chunks), _failures.address)
        return ticket if ticket >= 0 else self._fail(ticket)

    def all_reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, asynchronous: bool, timeout_s: float
    ) -> int:
        """Reduce `count` elements of every rank into the `target` of every rank.

        Args: as `Core.all_reduce`.
        """
        ticket: int = self._all_reduce(
            self._handle or self._gone(), source, target, count, dtype, op, asynchronous, timeout_s, _failures.address
        )
        return ticket if ticket >= 0 else self._fail(ticket)

    def all_gather(self, source: int, target: int, count: int, dtype: int, asynchronous: bool, timeout_s: float) -> int:
        """Collect `count` elements of every rank, in rank order.

        Args: as `Core.all_gather`.
        """
        ticket: int = self._all_gather(
            self._handle or self._gone(), source, target, None, count, dtype, asynchronous, timeout_s, _failures.address
        )
        return ticket if ticket >= 0 else self._fail(ticket)

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: int, op: int, asynchronous: bool, timeout_s: float
    ) -> int:
        """Reduce `size * count` elements of every rank; rank r keeps chunk r.

        Args: as `Core.reduce_scatter`.
        """
        handle, failure = self._handle or self._gone(), _failures.address
        ticket: int = self._reduce_scatter(
            handle, source, None, target, count, dtype, op, asynchronous, timeout_s, failure
        )
        return ticket if ticket >= 0 else self._fail(ticket)

    def sum_memory(self, memory: Any, timeout_s: float) -> bool:
        """Reduce an object with the buffer protocol by SUM, in place; False, with nothing done, if it is not plain.

        It replaces `all_reduce` where inspecting the memory in Python would take longer than a small reduction. Without
        `_door`, this call and the next two return False.
        """
        if self._short_ways is None:
            return False
        return self._has_served(
            self._short_ways.sum_memory(self._handle or self._gone(), memory, timeout_s, _failures.address)
        )

    def gather_memory(self, source: Any, target: Any, timeout_s: float) -> bool:
        """Collect an object of every rank into one object; False, with no data sent, if the objects do not fit.

        They fit if both are plain, do not overlap, and the target has room for the sources of all ranks.

        Args: as `Core.all_gather`, but as objects with the buffer protocol, which do not overlap.
        """
        if self._short_ways is None:
            return False
        handle, failure = self._handle or self._gone(), _failures.address
        return self._has_served(self._short_ways.gather_memory(handle, source, target, self.size, timeout_s, failure))

    def sum_scatter_memory(self, source: Any, target: Any, timeout_s: float) -> bool:
        """Reduce an object with one chunk per rank by SUM; rank r keeps chunk r.

        Returns: False, with no data sent, if the objects do not fit, as for `gather_memory`; else True.

        Args: as `Core.reduce_scatter`, but as objects with the buffer protocol, which do not overlap.
        """
        if self._short_ways is None:
            return False
        handle, failure = self._handle or self._gone(), _failures.address
        return self._has_served(
            self._short_ways.sum_scatter_memory(handle, source, target, self.size, timeout_s, failure)
        )

    def reduce_tensor(self, tensors: Any, options: Any, default_s: float) -> int | None:
        """Begin an all_reduce of torch's tensor, in place. Return its ticket, 0 when it is done.

        Return None, with nothing sent, for a tensor that is no plain host memory of a type that the core knows.

        Args:
            tensors: a list of one tensor.
            options: torch's AllreduceOptions.
            default_s: time limit in seconds if the options set none.
        """
        if self._tensor_ways is None:
            return None
        handle, failure = self._handle or self._gone(), _failures.address
        ticket: int | None = self._tensor_ways.reduce_tensor(handle, tensors, options, default_s, failure)
        return ticket if ticket is None or ticket >= 0 else self._fail(ticket)

    def broadcast_tensor(self, tensors: Any, options: Any, default_s: float) -> int | None:
        """Begin a broadcast of torch's tensor, in place.

        Args:
            tensors: a list of one tensor.
            options: torch's BroadcastOptions.
            default_s: as for `reduce_tensor`; the same holds for the result.
        """
        if self._tensor_ways is None:
            return None
        handle, failure = self._handle or self._gone(), _failures.address
        ticket: int | None = self._tensor_ways.broadcast_tensor(handle, tensors, options, default_s, failure)
        return ticket if ticket is None or ticket >= 0 else self._fail(ticket)

    def gather_tensor(self, output: Any, source: Any, options: Any, default_s: float) -> int | None:
        """Begin an all_gather of torch's tensor into one that has room for the tensors of all ranks.

        Args:
            output: the larger tensor.
            source: this rank's tensor.
            options: torch's AllgatherOptions.
            default_s: as for `reduce_tensor`; the same holds for the result.
        """
        if self._tensor_ways is None:
            return None
        handle, failure = self._handle or self._gone(), _failures.address
        ticket: int | None = self._tensor_ways.gather_tensor(
            handle, output, source, options, self.size, default_s, failure
        )
        return ticket if ticket is None or ticket >= 0 else self._fail(ticket)

    def scatter_tensor(self, output: Any, source: Any, options: Any, default_s: float) -> int | None:
        """Begin a reduce_scatter of torch's tensor, which holds a chunk for each rank.

        Args:
            output: this rank's chunk of the result.
            source: the larger tensor.
            options: torch's ReduceScatterOptions.
            default_s: as for `reduce_tensor`; the same holds for the result.
        """
        if self._tensor_ways is None:
            return None
        handle, failure = self._handle or self._gone(), _failures.address
        ticket: int | None = self._tensor_ways.scatter_tensor(
            handle, output, source, options, self.size, default_s, failure
        )
        return ticket if ticket is None or ticket >= 0 else self._fail(ticket)

    def _has_served(self, ticket: int | None) -> bool:
        """Return whether `_door` carried the operation out; raise the operation's error."""
        if ticket is None:
            return False
        if ticket < 0:
            self._fail(ticket)
        return True

    def wait(self, ticket: int, limit_s: float | None) -> int | None:
        """Wait until the operation has ended. Return the peer of a receive, else 0; None if `limit_s` passed first."""
        source = c_int32(0)
        code: int = self._wait(
            self._handle or self._gone(),
            ticket,
            -1.0 if limit_s is None else max(limit_s, 0.0),
            ctypes.addressof(source),
            _failures.address,
        )
        if code == 0:
            return source.value
        failure = _failures.failure
        if code == -Code.TIMEOUT and failure.culprit < 0 and not failure.text:
            return None
        return self._fail(code)

    def is_done(self, ticket: int) -> bool:
        """Whether the operation has ended, with success or failure."""
        return bool(self._calls.is_done(self._handle or self._gone(), ticket))

    def watch(self, ticket: int) -> None:
        """Have `next_watched` return this ticket once it has ended."""
        self._calls.watch(self._handle or self._gone(), ticket)

    def next_watched(self, limit_s: float) -> int:
        """Wait for a watched operation to end; return its ticket, 0 if `limit_s` passed, -1 once the core is closed."""
        handle = self._handle
        if handle is None:
            return -1
        return int(self._calls.next_watched(handle, limit_s))

    def abort(self, reason: str) -> None:
        """Poison the group on all ranks."""
        with self._closing:
            if self._handle is not None:
                self._calls.abort(self._handle, reason.encode())

    def explain(self, collective: int, num_bytes: int) -> str:
        """Return the algorithm that the cost model chooses, and why."""
        text = ctypes.create_string_buffer(_EXPLANATION_BYTES)
        self._calls.explain(self._handle or self._gone(), collective, num_bytes, text, _EXPLANATION_BYTES)
        return text.value.decode()

    def counters(self) -> dict[str, int]:
        """Return the counts since creation, by the names in `_COUNTER_NAMES`."""
        values = (c_uint64 * len(_COUNTER_NAMES))()
        written = self._calls.counters(self._handle or self._gone(), ctypes.addressof(values), len(_COUNTER_NAMES))
        return dict(zip(_COUNTER_NAMES[:written], values[:written], strict=True))

    def close(self) -> None:
        """Leave the group properly; pending operations fail. A second call does nothing."""
        with self._closing:
            handle, self._handle = self._handle, None
            if handle is not None:
                self._calls.destroy(handle)

    def _copied(self, chunks: Chunks) -> Chunks:
        """Return the chunks as C arrays for the library."""
        sources, targets = _array(self._addresses, chunks.sources), _array(self._addresses, chunks.targets)
        counts = _array(self._counts, chunks.send_counts), _array(self._counts, chunks.receive_counts)
        return Chunks(sources, targets, *counts)

    def _gone(self) -> NoReturn:
        raise error_of(
            Code.CLOSED, -1, f"group {self.name!r}, rank {self.rank}: it was closed by this rank; make another"
        )

    def _fail(self, code: int) -> NoReturn:
        failure = _failures.failure
        raise error_of(
            -code if code else failure.code, failure.culprit, failure.text.decode(errors="replace") or _NO_WORDS
        )


def _array(kind: Any, values: Sequence[int] | None) -> Any:
    return None if values is None else kind(*values)


_NO_WORDS = "the core refused the call without saying why"


def _group_of(connections: GroupConnections) -> _Group:
    size = connections.size
    ints = c_int32 * size
    names = [name.encode() for name in connections.host_names]
    return _Group(
        abi_version=ABI_VERSION,
        rank=connections.rank,
        size=size,
        name=connections.name.encode(),
        host_of_rank=ints(*connections.host_of_rank),
        host_names=(c_char_p * len(names))(*names),
        segment_fd=connections.segment_fd,
        segment_bytes=connections.segment_bytes,
        slot_bytes=connections.slot_bytes,
        lane_fds=ints(*connections.lane_fds),
        side_fds=ints(*connections.side_fds),
        timeout_s=connections.timeout_s,
        link_latency_s=connections.link_latency_s,
        link_bytes_per_s=connections.link_bytes_per_s,
        algorithm=connections.algorithm.encode(),
    )
