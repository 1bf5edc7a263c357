"""CUDA tensors by way of host memory, where NCCL cannot serve: several ranks on one GPU, or no NCCL at all.

Where: `process_group` sends CUDA tensors here when `devices.choose_path` says so. Tensors are copied to pinned memory
on one side stream, go through a group on host memory, and are copied back on another side stream. The program's stream
waits for the copy back; the program itself does not wait. An all-reduce is cut into segments, so that while one is
reduced, the next is copied to the host and the one before is copied back. This code has never run on a GPU: the project
has had none. Tests run it on host memory with fake streams.

Collectives run in the order of their calls in one thread, over connections of their own, so that operations on host
memory, which run in other threads, cannot interleave in different orders on different ranks. A second thread passes
sends and receives to the core in the order of their calls, because messages of one tag are matched by their order. Each
send or receive then has its own thread that waits for its end. So a message that waits for its peer cannot delay a
message for which that peer waits.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import Work

from clary.train._native.errors import CollectiveTimeout
from clary.train.collective.adapters.torch import keeping
from clary.train.collective.adapters.torch.collectives import Collectives

_SENDING, _RECEIVING = ("send",), ("recv", "recv_anysource")
# PCIe reaches its full rate with much smaller segments; the first and last segments are not overlapped
SEGMENT_BYTES = 8 << 20
_log = logging.getLogger(__name__)
_JOIN_S = 10.0


class Streams(Protocol):
    """Copies between a device and host memory, in the background."""

    def to_host(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
        """Begin to copy a tensor of any shape, after the work on the program's stream.

        Returns: the copy, and a function that waits for it.
        """

    def host_space(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
        """Make host memory for a tensor that a receive will overwrite.

        All of it is overwritten: the core ends a receive with an error if the message is shorter or longer than it, and
        nothing is copied back then.

        Returns: memory of the tensor's shape, without its values, and a function that waits for the work on the
            program's stream, which may still use the tensor.
        """

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Begin to copy `source` back into `target`, of the same shape."""

    def up_mark(self) -> Callable[[], None]:
        """Return a function that makes the caller's stream wait for all copies to the device that have begun."""

    def going_up(self) -> AbstractContextManager[Any]:
        """Return a context manager in which futures are ended, so that their consumers wait for the copies back."""

    def make_future(self) -> torch.futures.Future[Any]:
        """Return a future whose consumers' streams wait for the copies back that had begun when it was ended."""


class CudaStreams:
    """`Streams` of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._down = torch.cuda.Stream(device)
        self._up = torch.cuda.Stream(device)

    def to_host(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
        """Begin to copy a tensor to pinned memory of the same shape."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._down.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._down):
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._down)
            copied = torch.cuda.Event()
            copied.record(self._down)
        return host, copied.synchronize

    def host_space(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
        """Make pinned memory of a tensor's shape, for values that will replace the tensor's."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        used = torch.cuda.Event()
        used.record(torch.cuda.current_stream(self._device))
        return host, used.synchronize

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Begin to copy pinned memory back into a tensor of the same shape."""
        with torch.no_grad(), torch.cuda.stream(self._up):
            target.copy_(source, non_blocking=True)
            target.record_stream(self._up)

    def up_mark(self) -> Callable[[], None]:
        """Return a function that has the caller's stream wait for the copies back."""
        done = torch.cuda.Event()
        done.record(self._up)
        return lambda: torch.cuda.current_stream(self._device).wait_event(done)

    def going_up(self) -> AbstractContextManager[Any]:
        """Return a context manager that makes the stream of the copies back current, since futures record it."""
        return torch.cuda.stream(self._up)  # type: ignore[no-any-return]

    def make_future(self) -> torch.futures.Future[Any]:
        """Return a future whose results lie on the GPU."""
        return torch.futures.Future(devices=[self._device])


class StagedWork(Work):
    """An operation on its way through host memory. `wait` has the caller's stream wait, as with NCCL."""

    def __init__(self, results: Any, future: torch.futures.Future[Any]) -> None:
        super().__init__()
        self._results = results
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._order: Callable[[], None] | None = None
        self._peer = -1
        self._outcome = future
        self._future = future.then(self._results_or_error)
        if keeping.IS_NEEDED:
            keeping.keep(self)

    def end(self, error: BaseException | None, order: Callable[[], None] | None, peer: int = -1) -> None:
        """Wake the waiters: copies back have begun, or the operation failed.

        Args:
            error: of the operation; None on success.
            order: has the caller's stream wait for the copies back; None after an error.
            peer: rank that a received message came from, else -1.
        """
        self._error, self._order, self._peer = error, order, peer
        self._ended.set()
        self._outcome.set_result(None)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the copies back have begun, then have the caller's stream wait for them.

        Raises: CollectiveTimeout if `timeout` passed first (the operation continues); the operation's error.
        """
        if keeping.IS_NEEDED:
            keeping.let_go(self)
        if not self._ended.wait(timeout.total_seconds() if timeout else None):
            raise CollectiveTimeout(f"wait(timeout={timeout}) ended before the operation did, which goes on")
        if self._error is not None:
            raise self._error
        if self._order is not None:
            self._order()
        return True

    def is_completed(self) -> bool:
        """Whether the copies back have begun, or the operation failed."""
        return self._ended.is_set()

    def is_success(self) -> bool:
        """Whether the operation has ended without an error."""
        return self._ended.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Return the error of the operation, None without one."""
        return self._error

    def synchronize(self) -> None:
        """Wait, as `wait` does."""
        self.wait()

    def result(self) -> Any:
        """Return the tensors that the operation writes."""
        return self._results

    def source_rank(self) -> int:
        """Return the rank that a receive took its tensor from; wait first."""
        return self._peer

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors that the operation writes."""
        if keeping.IS_NEEDED:
            keeping.let_go(self)
        return self._future

    def _results_or_error(self, _: object) -> Any:
        if self._error is not None:
            raise self._error
        return self._results


class _Line:
    """Runs jobs one after another in one thread, which starts with the first job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def put(self, job: Callable[[], None]) -> None:
        """Add a job; after `close` it runs at once, since its group refuses it."""
        with self._changing:
            is_closed = self._is_closed
            if not is_closed:
                self._jobs.put(job)
            if not is_closed and self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        if is_closed:
            job()

    def drain(self) -> None:
        """Wait until all jobs that were added before have run."""
        if self._thread is not None:
            drained = threading.Event()
            self.put(drained.set)
            drained.wait()

    def close(self) -> None:
        """End the thread after the jobs that were added."""
        with self._changing:
            self._is_closed = True
            self._jobs.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException:  # noqa: BLE001 - the thread serves all later operations
                _log.exception("%s: the end of an operation was not reported", self._name)


class StagedGroup:
    """The methods of a group for CUDA tensors; each calls the same method of a group on host memory.

    Args:
        host: group on host memory, over connections that nothing else uses.
    """

    def __init__(self, host: Collectives, streams: Streams, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._host = host
        self._streams = streams
        self._segment_bytes = segment_bytes
        self._collectives = _Line("clary-staging")
        self._messages = _Line("clary-staging-messages")

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        """Reduce in place, segment by segment."""
        (tensor,) = tensors
        flat = tensor.detach().reshape(-1)  # a copy if the tensor is not contiguous
        length = max(self._segment_bytes // max(flat.element_size(), 1), 1)
        targets = list(flat.split(length))
        staged = [self._streams.to_host(part) for part in targets]
        work = StagedWork(list(tensors), self._streams.make_future())

        def run() -> None:
            for target, (host, await_copy) in zip(targets, staged, strict=True):
                await_copy()
                self._host.allreduce([host], opts).wait()
                self._streams.to_device(host, target)
            if flat.data_ptr() != tensor.data_ptr():
                self._streams.to_device(flat.view(tensor.shape), tensor)

        self._collectives.put(lambda: self._finish(work, run))
        return work

    def drain_messages(self) -> None:
        """Wait until the core has all sends and receives of earlier calls; their ends are not awaited."""
        self._messages.drain()

    def close(self) -> None:
        """End the threads, after the host group was closed."""
        self._collectives.close()
        self._messages.close()

    def __getattr__(self, name: str) -> Callable[..., Work]:
        method = getattr(self._host, name)
        if name.startswith("__") or not callable(method):
            raise AttributeError(name)

        def staged(*arguments: Any) -> Work:
            return self._stage(name, method, arguments)

        return staged

    def _stage(self, name: str, method: Callable[..., Work], arguments: tuple[Any, ...]) -> Work:
        """Run a method with host copies of all tensors among its arguments.

        The first argument is its output, which is copied back unless this rank's call leaves it as it is.
        """
        is_alone = name in _SENDING or name in _RECEIVING
        to_host = self._streams.host_space if name in _RECEIVING else self._streams.to_host
        copies: dict[int, tuple[torch.Tensor, torch.Tensor, Callable[[], None]]] = {}

        def on_host(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if id(value) not in copies:
                    copies[id(value)] = (value, *to_host(value))
                return copies[id(value)][1]
            return [on_host(item) for item in value] if isinstance(value, list) else value

        host_arguments = [on_host(arguments[0])]
        # a copy back of equal values would count as a change in place, after which autograd refuses to go on
        written = list(copies.values()) if self._writes(name, arguments) else []
        host_arguments += [on_host(argument) for argument in arguments[1:]]
        work = StagedWork(arguments[0], self._streams.make_future())

        def begin() -> Work:
            for _, _, await_copy in copies.values():
                await_copy()
            return method(*host_arguments)

        def end(done: Work) -> int:
            done.wait()
            for tensor, host, _ in written:
                self._streams.to_device(host, tensor)
            return int(done.source_rank()) if is_alone else -1  # torch raises if a work is no single message

        if is_alone:
            self._messages.put(lambda: self._post(work, begin, end))
        else:
            self._collectives.put(lambda: self._finish(work, lambda: end(begin())))
        return work

    def _writes(self, name: str, arguments: tuple[Any, ...]) -> bool:
        """Whether a call on this rank changes its first argument."""
        if name == "broadcast":
            return bool(arguments[1].rootRank != self._host._own_rank)
        if name == "reduce":
            return bool(arguments[1].rootRank == self._host._own_rank)
        return name not in _SENDING

    def _post(self, work: StagedWork, begin: Callable[[], Work], end: Callable[[Work], int]) -> None:
        """Hand a message to the core; another thread waits for its end."""
        try:
            done = begin()
        except Exception as error:  # noqa: BLE001 - kept for every later wait
            work.end(error, None)
            return
        name = "clary-staging-message"
        threading.Thread(target=self._finish, args=(work, lambda: end(done)), name=name, daemon=True).start()

    def _finish(self, work: StagedWork, run: Callable[[], int | None]) -> None:
        try:
            peer = run()
            order = self._streams.up_mark()
        except Exception as error:  # noqa: BLE001 - kept for every later wait
            work.end(error, None)
        else:
            with self._streams.going_up():
                work.end(None, order, -1 if peer is None else peer)
