"""One group of ranks, for buffers of any kind: arguments are checked, then a core runs the operation.

Where: programs without a framework use it directly, adapters use it for arrays. A core checks no address; this module
checks types, sizes, contiguity and overlap, and keeps memory alive until an operation has ended.

All ranks of a group must call the same collectives in the same order, from any thread. Collectives return a `Work`,
which has ended unless `asynchronous` is set; `send` and `receive` return a `Work` that may not have ended yet. After a
CollectiveError the group is poisoned: close it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from clary.train._native.errors import CollectiveError, GroupClosed
from clary.train._native.interface import ANY_RANK, Chunks, Core, Dtype, Kind, Operation, ReduceOp
from clary.train.collective.arguments import (
    addresses,
    check_length,
    check_same_type,
    chunks_like,
    in_and_out,
    reduction_of,
    uneven_chunks,
)
from clary.train.collective.bootstrap.group import connect_group
from clary.train.collective.bootstrap.store import Store
from clary.train.collective.buffers import Buffer, buffer_of, check_apart
from clary.train.collective.cores import open_core
from clary.train.collective.settings import CollectiveSettings
from clary.train.collective.work import PendingWorks, Work

if TYPE_CHECKING:
    from typing_extensions import Self  # part of typing since Python 3.11

_GROUP_TIMEOUT = 0.0  # tells cores to use the group's timeout


def open_group(
    store: Store | None,
    *,
    rank: int,
    size: int,
    group_name: str = "world",
    settings: CollectiveSettings | None = None,
) -> Communicator:
    """Form a group and open a core over it. Every rank calls it.

    Args:
        store: as for `bootstrap.group.connect_group`; `subgroup` also uses it; the communicator does not close it.
        settings: None reads the environment.

    Raises: as `connect_group` and `cores.open_core`.
    """
    if settings is None:
        settings = CollectiveSettings.from_environment(os.environ)
    connections = connect_group(store, rank=rank, size=size, group_name=group_name, settings=settings)
    core = open_core(connections, settings)
    return Communicator(core, rank=rank, size=size, name=group_name, store=store, settings=settings)


class Communicator:
    """A formed group; see the module's docstring.

    Buffers are objects with the buffer protocol, or `buffers.Buffer`. Chunks for or from all ranks are in one buffer in
    rank order, or in a list with one buffer per rank. `dtype` is for memory whose format does not tell the element
    type.

    All methods raise TypeError or ValueError for invalid arguments before they send data; the text names the fix. They
    raise CollectiveError from the call or from `Work.wait`.
    """

    def __init__(
        self,
        core: Core,
        *,
        rank: int,
        size: int,
        name: str,
        store: Store | None = None,
        settings: CollectiveSettings | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.name = name
        self.core = core
        self._store = store
        self._settings = settings or CollectiveSettings()
        self._pending = PendingWorks()
        # None for a core without `sum_memory`, and after `close`.
        self._short_ways: Any = core if getattr(core, "sum_memory", None) is not None else None
        self._ended = Work(core, 0, ())  # shared Work of all operations that ended before their call returned
        self._num_subgroups = 0
        self._is_closed = False

    # Collectives

    def all_reduce(
        self,
        source: Any,
        target: Any = None,
        *,
        op: ReduceOp | str = ReduceOp.SUM,
        dtype: Dtype | None = None,
        asynchronous: bool = False,
        timeout_s: float = _GROUP_TIMEOUT,
    ) -> Work:
        """Reduce `source` of all ranks into `target` of all ranks; reduce in place if there is no target.

        Args:
            source: memory that `buffer_of` accepts, of equal length on all ranks.
            target: memory of the same length; None for in place.
            op: a ReduceOp or its name, such as `sum`.
            dtype: element type; None to derive it from the buffers' format.
            asynchronous: return at once; the caller must not use the buffers until the work has ended.
            timeout_s: limit of the operation in seconds; 0 for the group's timeout.
        """
        is_plain = target is None and dtype is None and op is ReduceOp.SUM and not asynchronous
        if is_plain and self._short_ways is not None and self._short_ways.sum_memory(source, timeout_s):
            return self._ended
        source, target = in_and_out(source, target, dtype)
        asked = Operation(Kind.ALL_REDUCE, source.dtype, source.num_elements, source.address, target.address)
        asked.reduction = reduction_of(op, source.dtype)
        return self._start(asked, (source, target), asynchronous, timeout_s)

    def all_gather(
        self,
        source: Any,
        target: Any,
        *,
        dtype: Dtype | None = None,
        asynchronous: bool = False,
        timeout_s: float = _GROUP_TIMEOUT,
    ) -> Work:
        """Collect `source` of every rank, in rank order, in `target`.

        Args:
            source: memory of equal length on all ranks.
            target: memory for `size` chunks like `source`, in one buffer or a list of one per rank.
            dtype, asynchronous, timeout_s: as for `all_reduce`.
        """
        is_plain = dtype is None and not asynchronous
        if is_plain and self._short_ways is not None and self._short_ways.gather_memory(source, target, timeout_s):
            return self._ended
        source = buffer_of(source, name="source", dtype=dtype)
        targets = chunks_like(source, target, self.size, name="target", is_output=True)
        check_apart((source,), targets, may_be_equal=self.size == 1)
        address, apart = addresses(targets)
        asked = Operation(Kind.ALL_GATHER, source.dtype, source.num_elements, source.address, address)
        asked.chunks = Chunks(targets=apart) if apart else None
        return self._start(asked, (source, *targets), asynchronous, timeout_s)

    def reduce_scatter(
        self,
        source: Any,
        target: Any,
        *,
        op: ReduceOp | str = ReduceOp.SUM,
        dtype: Dtype | None = None,
        asynchronous: bool = False,
        timeout_s: float = _GROUP_TIMEOUT,
    ) -> Work:
        """Reduce `source`, which holds a chunk for every rank; each rank receives its reduced chunk in `target`.

        Args:
            source: `size` chunks like `target`, in one buffer or a list of one per rank.
            target: memory of equal length on all ranks.
            op, dtype, asynchronous, timeout_s: as for `all_reduce`.
        """
        is_plain = dtype is None and op is ReduceOp.SUM and not asynchronous
        if is_plain and self._short_ways is not None and self._short_ways.sum_scatter_memory(source, target, timeout_s):
            return self._ended
        target = buffer_of(target, name="target", dtype=dtype, is_output=True)
        sources = chunks_like(target, source, self.size, name="source")
        check_apart(sources, (target,), may_be_equal=self.size == 1)
        address, apart = addresses(sources)
        asked = Operation(Kind.REDUCE_SCATTER, target.dtype, target.num_elements, address, target.address)
        asked.reduction, asked.chunks = reduction_of(op, target.dtype), Chunks(sources=apart) if apart else None
        return self._start(asked, (*sources, target), asynchronous, timeout_s)

    def broadcast(
        self,
        buffer: Any,
        *,
        root: int = 0,
        dtype: Dtype | None = None,
        asynchronous: bool = False,
        timeout_s: float = _GROUP_TIMEOUT,
    ) -> Work:
        """Copy the root's buffer into the buffers of all other ranks.

        Args:
            buffer: memory of equal length on all ranks; read on the root, written on other ranks.
            root: rank that sends.
            dtype, asynchronous, timeout_s: as for `all_reduce`.
        """
        self._check_rank(root, "root")
        memory = buffer_of(buffer, name="buffer", dtype=dtype, is_output=self.rank != root)
        asked = Operation(Kind.BROADCAST, memory.dtype, memory.num_elements, 0, memory.address)
        asked.root = root
        return self._start(asked, (memory,), asynchronous, timeout_s)

    def reduce(
        self,
        source: Any,
        target: Any = None,
        *,
        root: int = 0,
        op: ReduceOp | str = ReduceOp.SUM,
        dtype: Dtype | None = None,
        asynchronous: bool = False,
        timeout_s: float = _GROUP_TIMEOUT,
    ) -> Work:
        """Reduce into the root's `target`, by default its `source`; other ranks' targets are not touched.

        Args:
            source: memory of equal length on all ranks.
            target: on the root, memory of the same length; None reduces in place.
            root: rank that receives the result.
            op, dtype, asynchronous, timeout_s: as for `all_reduce`.
        """
        self._check_rank(root, "root")
        if self.rank == root:
            source, target = in_and_out(source, target, dtype)
            address = target.address
        else:
            source, target, address = buffer_of(source, name="source", dtype=dtype), None, 0
        asked = Operation(Kind.REDUCE, source.dtype, source.num_elements, source.address, address, root=root)
        asked.reduction = reduction_of(op, source.dtype)
        return self._start(asked, (source, target), asynchronous, timeout_s)

    def all_to_all(
        self,
        source: Any,
        target: Any,
        *,
        send_counts: Sequence[int] | None = None,
        receive_counts: Sequence[int] | None = None,
        dtype: Dtype | None = None,
        asynchronous: bool = False,
        timeout_s: float = _GROUP_TIMEOUT,
    ) -> Work:
        """Send every rank its chunk of `source`; receive a chunk from each rank into `target`.

        Args:
            send_counts, receive_counts: elements to and from each rank; None for equal chunks. Lists of buffers imply
                their counts.
        """
        sources, sent = uneven_chunks(source, send_counts, self.size, name="source", dtype=dtype)
        targets, received = uneven_chunks(target, receive_counts, self.size, name="target", dtype=dtype, is_output=True)
        check_same_type(sources[0], targets[0])
        check_apart(sources, targets, may_be_equal=False)
        # One rank cannot tell whether all ranks pass equal counts, so counts are omitted only if no rank can pass
        # unequal ones.
        is_even = send_counts is None and receive_counts is None and len(sources) == len(targets) == 1
        if is_even:
            check_length(targets[0], sources[0].num_elements, "target")
        source_address, sources_apart = addresses(sources)
        target_address, targets_apart = addresses(targets)
        counts = (None, None) if is_even else (sent, received)
        asked = Operation(Kind.ALL_TO_ALL, sources[0].dtype, sent[0], source_address, target_address)
        asked.chunks = Chunks(sources_apart, targets_apart, *counts)
        return self._start(asked, (*sources, *targets), asynchronous, timeout_s)

    def gather(
        self,
        source: Any,
        target: Any = None,
        *,
        root: int = 0,
        dtype: Dtype | None = None,
        asynchronous: bool = False,
        timeout_s: float = _GROUP_TIMEOUT,
    ) -> Work:
        """Collect `source` of every rank in the root's `target`; other ranks omit `target`.

        Args:
            source: memory of equal length on all ranks.
            target: on the root, memory for `size` chunks like `source`, in one buffer or a list of one per rank.
            root: rank that collects.
            dtype, asynchronous, timeout_s: as for `all_reduce`.
        """
        self._check_rank(root, "root")
        source = buffer_of(source, name="source", dtype=dtype)
        targets = self._root_chunks(target, source, root, name="target", is_output=True)
        check_apart((source,), targets, may_be_equal=self.size == 1)
        address, apart = addresses(targets)
        asked = Operation(Kind.GATHER, source.dtype, source.num_elements, source.address, address, root=root)
        asked.chunks = Chunks(targets=apart) if apart else None
        return self._start(asked, (source, *targets), asynchronous, timeout_s)

    def scatter(
        self,
        source: Any,
        target: Any,
        *,
        root: int = 0,
        dtype: Dtype | None = None,
        asynchronous: bool = False,
        timeout_s: float = _GROUP_TIMEOUT,
    ) -> Work:
        """Give every rank its chunk of the root's `source`; other ranks pass None as `source`.

        Args:
            source: on the root, `size` chunks like `target`, in one buffer or a list of one per rank.
            target: memory of equal length on all ranks.
            root: rank that sends.
            dtype, asynchronous, timeout_s: as for `all_reduce`.
        """
        self._check_rank(root, "root")
        target = buffer_of(target, name="target", dtype=dtype, is_output=True)
        sources = self._root_chunks(source, target, root, name="source")
        check_apart(sources, (target,), may_be_equal=self.size == 1)
        address, apart = addresses(sources)
        asked = Operation(Kind.SCATTER, target.dtype, target.num_elements, address, target.address, root=root)
        asked.chunks = Chunks(sources=apart) if apart else None
        return self._start(asked, (*sources, target), asynchronous, timeout_s)

    def barrier(self, *, asynchronous: bool = False, timeout_s: float = _GROUP_TIMEOUT) -> Work:
        """Wait until every rank has called `barrier`."""
        return self._start(Operation(Kind.BARRIER), (), asynchronous, timeout_s)

    # Point to point

    def send(self, buffer: Any, peer: int, *, tag: int = 0, timeout_s: float = _GROUP_TIMEOUT) -> Work:
        """Begin to send to a rank; once the work has ended, the buffer may be changed.

        Args:
            buffer: memory of any type; sent as bytes.
            peer: rank that receives.
            tag: tag of the `receive` that receives it.
            timeout_s: limit of the operation in seconds; 0 for the group's timeout.
        """
        self._check_peer(peer)
        memory = buffer_of(buffer, name="buffer")
        message = Operation(Kind.SEND, count=memory.num_bytes, source=memory.address, root=peer, tag=tag)
        return self._start(message, (memory,), True, timeout_s)

    def receive(self, buffer: Any, peer: int = ANY_RANK, *, tag: int = 0, timeout_s: float = _GROUP_TIMEOUT) -> Work:
        """Begin to receive `buffer` from one rank or any rank; `Work.source` names the sender.

        Args:
            buffer: memory of as many bytes as the message.
            peer: rank that sends, or ANY_RANK.
            tag: tag of the `send`.
            timeout_s: limit of the operation in seconds; 0 for the group's timeout.
        """
        if peer != ANY_RANK:
            self._check_peer(peer)
        memory = buffer_of(buffer, name="buffer", is_output=True)
        message = Operation(Kind.RECEIVE, count=memory.num_bytes, target=memory.address, root=peer, tag=tag)
        return self._start(message, (memory,), True, timeout_s)

    # Lifetime

    def subgroup(self, ranks: Sequence[int]) -> Communicator | None:
        """Form a group of some ranks, numbered in the order of the list. Every rank of this group calls it.

        Ranks may pass different lists if no two lists share a rank; a rank without a new group passes an empty list.
        Returns: None on ranks that are not listed; all ranks return after all groups are formed, so that no rank closes
        the store earlier.
        Raises: ValueError; otherwise the errors of `open_group`, after which this group is poisoned, too.
        """
        members = list(ranks)
        if len(set(members)) != len(members):
            raise ValueError(f"subgroup of ranks {members}: list each rank once")
        for member in members:
            self._check_rank(member, "subgroup")
        self._check_open()
        self._num_subgroups += 1
        group = self._form_subgroup(members) if self.rank in members else None
        try:
            self.barrier(timeout_s=self._settings.connect_timeout_s)
        except CollectiveError:
            if group is not None:
                group.close()
            raise
        return group

    def abort(self, reason: str) -> None:
        """Poison the group on all ranks; their error texts contain `reason`."""
        if not self._is_closed:
            self.core.abort(reason)

    def close(self) -> None:
        """Leave the group; running operations fail. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._short_ways = None
            self._pending.settle()
            self.core.close()
            self._pending.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:  # otherwise the other ranks would wait for this rank until their timeout
            self.abort(f"the program of rank {self.rank} ended with {kind.__name__}: {error}")
        self.close()

    def _form_subgroup(self, members: list[int]) -> Communicator:
        name = f"{self.name}.{self._num_subgroups}.{min(members)}"
        try:
            return open_group(
                self._store,
                rank=members.index(self.rank),
                size=len(members),
                group_name=name,
                settings=self._settings,
            )
        except CollectiveError as error:  # otherwise the other ranks would wait in the barrier
            self.abort(f"group {name!r} could not be formed: {error}")
            raise

    # Checks

    def _start(self, asked: Operation, buffers: Sequence[Buffer | None], asynchronous: bool, timeout_s: float) -> Work:
        self._check_open()
        asked.asynchronous, asked.timeout_s = asynchronous, timeout_s
        try:
            ticket = self.core.run(asked)
        except (CollectiveError, ValueError):
            raise
        except BaseException as error:  # interrupted: the operation must not access its memory any more
            self.core.abort(f"rank {self.rank} was interrupted in an operation by {type(error).__name__}")
            raise
        if not ticket:
            return self._ended
        work = Work(self.core, ticket, [buffer for buffer in buffers if buffer is not None])
        if not work.is_done():
            self._pending.add(work)
        return work

    def _check_open(self) -> None:
        if self._is_closed:
            raise GroupClosed(f"group {self.name!r} was closed by this rank, {self.rank}: open another")

    def _check_rank(self, rank: int, what: str) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"{what} {rank} is no rank of group {self.name!r}, which has 0 to {self.size - 1}")

    def _check_peer(self, peer: int) -> None:
        self._check_rank(peer, "peer")
        if peer == self.rank:
            raise ValueError(f"rank {peer} of group {self.name!r} cannot send to or receive from itself: copy instead")

    def _root_chunks(
        self, memories: Any, one: Buffer, root: int, *, name: str, is_output: bool = False
    ) -> list[Buffer]:
        """Return chunks like `one` on the root, and an empty list on other ranks."""
        if self.rank != root:
            return []
        if memories is None:
            raise ValueError(f"{name} is missing on rank {root}, which is the root: pass room for {self.size} chunks")
        return chunks_like(one, memories, self.size, name=name, is_output=is_output)
