"""torch's collectives over a core: tensors become addresses and counts, and tickets become Work objects.

Where: `process_group.SmddpProcessGroup` inherits these methods. torch.distributed calls them directly; DDP's reducer
and the functional collectives call them from C++. Ranks and roots are numbered within the group, and lists are in the
order of its ranks. `calls` explains the short spelling of a call. Every rank must issue the same sequence. A call whose
caller waits anyway (`asyncOp` false) runs in the calling thread and returns `work.ENDED`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Work,
)
from torch.distributed.distributed_c10d import AllgatherOptions

from clary.train._native.interface import ANY_RANK, Chunks, Core, Kind, Operation
from clary.train.collective.adapters.torch import keeping
from clary.train.collective.adapters.torch.calls import (
    as_list,
    as_nested,
    is_asynchronous,
    limit_s_of,
    options_of,
)
from clary.train.collective.adapters.torch.completion import CompletionThread
from clary.train.collective.adapters.torch.tensors import (
    averages_integers,
    check_equal,
    dense,
    moved,
    reduced,
    reduction_of,
    single,
    tensors_are_read_by,
)
from clary.train.collective.adapters.torch.work import ENDED, EndedWork, JointWork, PendingWork

Tensors = Sequence[torch.Tensor]
AnyWork = TypeVar("AnyWork", bound=Work)


class Collectives:
    """The collectives of one group on host memory.

    Args:
        core: connected with the other ranks.
        completion: ends futures.
    """

    def __init__(self, core: Core, completion: CompletionThread, rank: int, size: int) -> None:
        self._core = core
        self._completion = completion
        self._own_rank = rank
        self._num_ranks = size
        self._timeout_s = 0.0  # 0 for the core's own limit
        self._num_issued = 0
        self._coalesced: list[Work] | None = None
        # The core if it reads torch's tensors itself, else None.
        self._reader: Any = core if tensors_are_read_by(core) else None

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Reduce a tensor of any shape in place, on all ranks.

        Args:
            tensors: a tensor of any shape, or a list of one; the same shape on all ranks.
            opts: AllreduceOptions, or in the short spelling a ReduceOp; None for a sum.
            timeout: time limit in the short spelling; None for the group's.
        """
        if type(opts) is not AllreduceOptions:
            tensors, opts = as_list(tensors), options_of(AllreduceOptions, opts, timeout, op=_op_in(opts))
        if self._reader is not None and len(tensors) == 1 and not averages_integers(tensors[0], opts):
            ticket = self._reader.reduce_tensor(tensors, opts, self._timeout_s)
            if ticket is not None:
                return self._read(ticket, opts, tensors, tensors)
        tensor = single(tensors, "all_reduce")
        if not tensor.is_cpu and (other := self._elsewhere(tensor)) is not None:
            return other.allreduce(tensors, opts)
        return self._reduce_all(tensor, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce several tensors in place; tensors of one type are reduced as one."""
        opts = options_of(AllreduceCoalescedOptions, opts)
        if (other := self._elsewhere_any(tensors)) is not None:
            return other.allreduce_coalesced(tensors, opts)
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        return _joint([self._reduce_flat(group, opts) for group in by_type.values()], tensors)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Copy the root's tensor to all ranks, in place.

        Args:
            tensors: a tensor of any shape, or a list of one; the same shape on all ranks.
            opts: BroadcastOptions, or in the short spelling the root's rank; None for rank 0.
            timeout: time limit in the short spelling; None for the group's.
        """
        if type(opts) is not BroadcastOptions:
            tensors, opts = as_list(tensors), options_of(BroadcastOptions, opts, timeout, root=opts)
        if self._reader is not None:
            ticket = self._reader.broadcast_tensor(tensors, opts, self._timeout_s)
            if ticket is not None:
                return self._read(ticket, opts, tensors, tensors)
        tensor = single(tensors, "broadcast")
        if not tensor.is_cpu and (other := self._elsewhere(tensor)) is not None:
            return other.broadcast(tensors, opts)
        buffer = dense(tensor, "broadcast")
        count, dtype = moved(buffer)
        asked = Operation(Kind.BROADCAST, dtype, count, 0, buffer.data_ptr())
        asked.root = opts.rootRank
        return self._run(asked, opts, tensors, buffer, _copy_back_one(tensor, buffer))

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None) -> Work:
        """Reduce to the root's tensor; other ranks' tensors stay unchanged.

        Args:
            tensors: a tensor of any shape, or a list of one; the same shape on all ranks.
            opts: ReduceOptions, or in the short spelling the root's rank; None for rank 0.
            op: a ReduceOp in the short spelling; None for a sum.
            timeout: time limit in the short spelling; None for the group's.
        """
        if type(opts) is not ReduceOptions:
            tensors, opts = as_list(tensors), options_of(ReduceOptions, opts, timeout, root=opts, op=op)
        tensor = single(tensors, "reduce")
        if not tensor.is_cpu and (other := self._elsewhere(tensor)) is not None:
            return other.reduce(tensors, opts)
        buffer = dense(tensor, "reduce")
        number, complete = reduction_of(buffer, opts, self._num_ranks)
        count, dtype = reduced(buffer, number, "reduce")
        is_root = opts.rootRank == self._own_rank
        address = buffer.data_ptr()
        asked = Operation(Kind.REDUCE, dtype, count, address, address if is_root else 0, root=opts.rootRank)
        asked.reduction = number
        finish = _both(complete, _copy_back_one(tensor, buffer)) if is_root else None
        return self._run(asked, opts, tensors, buffer, finish)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Collect a tensor of every rank into a list of tensors in rank order; their sizes may differ by rank.

        Args:
            output_tensors: a list of one tensor for each rank, or that list in a list.
            input_tensors: a tensor of any shape, or a list of one, with as many elements as this rank's output.
            opts: AllgatherOptions, or None in the short spelling.
            timeout: time limit in the short spelling; None for the group's.
        Raises: ValueError if this rank's output has another size than its input, or a tensor is missing.
        """
        if type(opts) is not AllgatherOptions:
            output_tensors, input_tensors = as_nested(output_tensors), as_list(input_tensors)
            opts = options_of(AllgatherOptions, opts, timeout)
        tensor = single(input_tensors, "all_gather")
        if not tensor.is_cpu and (other := self._elsewhere(tensor)) is not None:
            return other.allgather(output_tensors, input_tensors, opts)
        outputs = self._one_a_rank(single(output_tensors, "all_gather"), "all_gather")
        _check_types(outputs, tensor, "all_gather")
        source = dense(tensor, "all_gather")
        buffers, finish = _written(outputs, "all_gather")
        count, dtype = moved(source)
        counts = [moved(buffer)[0] for buffer in buffers]
        addresses = [buffer.data_ptr() for buffer in buffers]
        if counts[self._own_rank] != count:
            raise ValueError(
                f"backend smddp: all_gather: the output for rank {self._own_rank} has "
                f"{outputs[self._own_rank].numel()} elements, expected {tensor.numel()} as its input has"
            )
        if len(set(counts)) == 1:
            asked = Operation(Kind.ALL_GATHER, dtype, count, source.data_ptr(), chunks=Chunks(targets=addresses))
        else:  # every rank sees the same sizes, so all take this branch
            everywhere = [source.data_ptr()] * self._num_ranks, addresses, [count] * self._num_ranks, counts
            asked = Operation(Kind.ALL_TO_ALL, dtype, chunks=Chunks(*everywhere))
        return self._run(asked, opts, output_tensors, (source, buffers), finish)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:  # noqa: A002
        """Collect a tensor of every rank into one that holds all, in rank order.

        Args:
            output: of any shape, with N times the elements of `input` for N ranks.
            input: of any shape, the same on all ranks.
            opts: AllgatherOptions, or None in the short spelling.
        """
        opts = opts if type(opts) is AllgatherOptions else options_of(AllgatherOptions, opts)
        if self._reader is not None:
            ticket = self._reader.gather_tensor(output, input, opts, self._timeout_s)
            if ticket is not None:
                return self._read(ticket, opts, [output], (output, input))
        if not input.is_cpu and (other := self._elsewhere(input)) is not None:
            return other._allgather_base(output, input, opts)
        _check_share(output, input, self._num_ranks, "all_gather_into_tensor", "output", "input")
        source = dense(input, "all_gather_into_tensor")
        buffer = dense(output, "all_gather_into_tensor")
        count, dtype = moved(source)
        asynchronous = is_asynchronous(opts)
        ticket = self._core.all_gather(
            source.data_ptr(), buffer.data_ptr(), count, dtype, asynchronous, limit_s_of(opts, self._timeout_s)
        )
        return self._work(ticket, asynchronous, [output], (source, buffer), _copy_back_one(output, buffer))

    def allgather_coalesced(self, output_lists: Sequence[Tensors], input_list: Tensors, opts: Any = None) -> Work:
        """Collect several tensors of every rank.

        Args:
            output_lists: a list of tensors for each rank.
            input_list: this rank's tensors, as many as in each of those lists.
            opts: AllgatherOptions, or None in the short spelling.
        """
        self._one_a_rank(output_lists, "all_gather_coalesced")
        opts = options_of(AllgatherOptions, opts)
        works = [
            self.allgather([[outputs[index] for outputs in output_lists]], [tensor], opts)
            for index, tensor in enumerate(input_list)
        ]
        return _joint(works, [tensor for outputs in output_lists for tensor in outputs])

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Collect several tensors of every rank, each into one that holds all.

        Args:
            outputs: for each input a tensor with N times its elements for N ranks.
            inputs: this rank's tensors.
            opts: AllgatherOptions, or None in the short spelling.
        """
        opts = options_of(AllgatherOptions, opts)
        works = [self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
        return _joint(works, outputs)

    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Reduce a list of tensors, one per rank; rank r keeps the r-th. Sizes may differ by rank.

        Args:
            output_tensors: a tensor of any shape, or a list of one, with as many elements as this rank's input.
            input_tensors: a list of one tensor for each rank, or that list in a list.
            opts: ReduceScatterOptions, or in the short spelling a ReduceOp; None for a sum.
            timeout: time limit in the short spelling; None for the group's.
        """
        if type(opts) is not ReduceScatterOptions:
            output_tensors, input_tensors = as_list(output_tensors), as_nested(input_tensors)
            opts = options_of(ReduceScatterOptions, opts, timeout, op=_op_in(opts))
        output = single(output_tensors, "reduce_scatter")
        if not output.is_cpu and (other := self._elsewhere(output)) is not None:
            return other.reduce_scatter(output_tensors, input_tensors, opts)
        inputs = self._one_a_rank(single(input_tensors, "reduce_scatter"), "reduce_scatter")
        _check_types(inputs, output, "reduce_scatter")
        check_equal([inputs[self._own_rank]], output, "reduce_scatter")
        if len({tensor.numel() for tensor in inputs}) > 1:  # every rank sees the same sizes, so all take this branch
            return self._reduce_each(output, inputs, opts)
        sources = [dense(tensor, "reduce_scatter") for tensor in inputs]
        return self._reduce_scatter(output, 0, [source.data_ptr() for source in sources], sources, opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:  # noqa: A002
        """Reduce a tensor that holds one chunk per rank; rank r keeps chunk r.

        Args:
            output: of any shape, the same on all ranks.
            input: of any shape, with N times the elements of `output` for N ranks.
            opts: ReduceScatterOptions; None for a sum.
        """
        opts = opts if type(opts) is ReduceScatterOptions else options_of(ReduceScatterOptions, opts)
        if self._reader is not None and not averages_integers(input, opts):
            ticket = self._reader.scatter_tensor(output, input, opts, self._timeout_s)
            if ticket is not None:
                return self._read(ticket, opts, [output], (output, input))
        if not input.is_cpu and (other := self._elsewhere(input)) is not None:
            return other._reduce_scatter_base(output, input, opts)
        _check_share(input, output, self._num_ranks, "reduce_scatter_tensor", "input", "output")
        source = dense(input, "reduce_scatter_tensor")
        return self._reduce_scatter(output, source.data_ptr(), None, source, opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Reduce several tensors that each hold one chunk per rank.

        Args:
            outputs: a tensor for each input.
            inputs: tensors with N times the elements of their outputs for N ranks.
            opts: ReduceScatterOptions; None for a sum.
        """
        opts = options_of(ReduceScatterOptions, opts)
        works = [self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
        return _joint(works, outputs)

    def gather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Collect a tensor of every rank in the root's list, in rank order.

        Args:
            output_tensors: on the root a list of one tensor for each rank, or that list in a list; elsewhere empty.
            input_tensors: a tensor of any shape, or a list of one; the same shape on all ranks.
            opts: GatherOptions, or in the short spelling the root's rank; None for rank 0.
            timeout: time limit in the short spelling; None for the group's.
        """
        if type(opts) is not GatherOptions:
            output_tensors, input_tensors = as_nested(output_tensors), as_list(input_tensors)
            opts = options_of(GatherOptions, opts, timeout, root=opts)
        tensor = single(input_tensors, "gather")
        if not tensor.is_cpu and (other := self._elsewhere(tensor)) is not None:
            return other.gather(output_tensors, input_tensors, opts)
        source = dense(tensor, "gather")
        count, dtype = moved(source)
        addresses: list[int] | None = None
        buffers: Tensors = ()
        finish = None
        if opts.rootRank == self._own_rank:
            outputs = self._one_a_rank(single(output_tensors, "gather"), "gather")
            check_equal(outputs, tensor, "gather")
            buffers, finish = _written(outputs, "gather")
            addresses = [buffer.data_ptr() for buffer in buffers]
        asked = Operation(Kind.GATHER, dtype, count, source.data_ptr(), root=opts.rootRank)
        asked.chunks = Chunks(targets=addresses)
        return self._run(asked, opts, output_tensors, (source, buffers), finish)

    def scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Give each rank its tensor of the root's list.

        Args:
            output_tensors: a tensor of any shape, or a list of one; the same shape on all ranks.
            input_tensors: on the root a list of one tensor for each rank, or that list in a list; elsewhere empty.
            opts: ScatterOptions, or in the short spelling the root's rank; None for rank 0.
            timeout: time limit in the short spelling; None for the group's.
        """
        if type(opts) is not ScatterOptions:
            output_tensors, input_tensors = as_list(output_tensors), as_nested(input_tensors)
            opts = options_of(ScatterOptions, opts, timeout, root=opts)
        output = single(output_tensors, "scatter")
        if not output.is_cpu and (other := self._elsewhere(output)) is not None:
            return other.scatter(output_tensors, input_tensors, opts)
        buffer = dense(output, "scatter")
        count, dtype = moved(buffer)
        sources: Tensors = ()
        addresses: list[int] | None = None
        if opts.rootRank == self._own_rank:
            inputs = self._one_a_rank(single(input_tensors, "scatter"), "scatter")
            check_equal(inputs, output, "scatter")
            sources = [dense(tensor, "scatter") for tensor in inputs]
            addresses = [source.data_ptr() for source in sources]
        asked = Operation(Kind.SCATTER, dtype, count, target=buffer.data_ptr(), root=opts.rootRank)
        asked.chunks = Chunks(sources=addresses)
        return self._run(asked, opts, [output], (buffer, sources), _copy_back_one(output, buffer))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Send rows of a tensor to every rank and receive rows from every rank.

        Args:
            output: [rows received, ...].
            input: [rows sent, ...].
            output_split_sizes: rows from each rank, by rank; empty for equal parts.
            input_split_sizes: rows for each rank, by rank; empty for equal parts.
            opts: AllToAllOptions, or None in the short spelling.
            timeout: time limit in the short spelling; None for the group's.
        """
        opts = options_of(AllToAllOptions, opts, timeout)
        if not input.is_cpu and (other := self._elsewhere(input)) is not None:
            return other.alltoall_base(output, input, output_split_sizes, input_split_sizes, opts)
        _check_types([output], input, "all_to_all_single")
        source = dense(input, "all_to_all_single")
        buffer = dense(output, "all_to_all_single")
        send_counts, dtype = self._split(source, input_split_sizes, "input")
        receive_counts, _ = self._split(buffer, output_split_sizes, "output")
        # An empty tensor has no address, and the core needs one. The core accesses only the counted elements, and here
        # there are none.
        sent, received = (one if one.numel() else one.new_empty(1) for one in (source, buffer))
        asked = Operation(Kind.ALL_TO_ALL, dtype, 0, sent.data_ptr(), received.data_ptr())
        asked.chunks = Chunks(send_counts=send_counts, receive_counts=receive_counts)
        return self._run(asked, opts, [output], (sent, received), _copy_back_one(output, buffer))

    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Send a tensor to every rank and receive one from each; sizes may differ.

        Args:
            output_tensors: one for each rank, with the size of the tensor that this rank receives from it.
            input_tensors: one for each rank.
            opts: AllToAllOptions, or None in the short spelling.
            timeout: time limit in the short spelling; None for the group's.
        """
        opts = options_of(AllToAllOptions, opts, timeout)
        if (other := self._elsewhere_any(input_tensors)) is not None:
            return other.alltoall(output_tensors, input_tensors, opts)
        inputs = self._one_a_rank(input_tensors, "all_to_all")
        outputs = self._one_a_rank(output_tensors, "all_to_all")
        _check_types([*outputs, *inputs], inputs[0], "all_to_all")
        sources = [dense(tensor, "all_to_all") for tensor in inputs]
        buffers, finish = _written(outputs, "all_to_all")
        chunks = Chunks(
            sources=[source.data_ptr() for source in sources],
            targets=[buffer.data_ptr() for buffer in buffers],
            send_counts=[moved(source)[0] for source in sources],
            receive_counts=[moved(buffer)[0] for buffer in buffers],
        )
        asked = Operation(Kind.ALL_TO_ALL, moved(sources[0])[1], chunks=chunks)
        return self._run(asked, opts, outputs, (sources, buffers), finish)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Return a work that ends when every rank has called `barrier`."""
        opts = opts if type(opts) is BarrierOptions else options_of(BarrierOptions, opts, timeout)
        return self._run(Operation(Kind.BARRIER), opts, ())

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait until every rank has called `monitored_barrier`; the error names only the first missing rank."""
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        self._core.run(Operation(Kind.BARRIER, timeout_s=limit_s))

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        """Send a tensor to a rank; messages are matched by tag and are independent of collectives.

        Args:
            tensors: a tensor of any shape, or a list of one.
            dst: rank that receives.
            tag: of the `recv` that takes it.
        """
        tensor = single(as_list(tensors), "send")
        if (other := self._carrier(tensor)) is not None:
            return other.send(tensors, dst, tag)
        buffer = dense(tensor, "send")
        message = Operation(Kind.SEND, count=buffer.nbytes, source=buffer.data_ptr(), root=dst, tag=tag)
        message.timeout_s = self._timeout_s
        return self._pending(self._core.run(message), [tensor], buffer)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        """Receive a tensor from a rank.

        Args:
            tensors: a tensor of any shape, or a list of one, with as many bytes as were sent; it is overwritten.
            src: rank that sends.
            tag: of the `send`.
        """
        tensor = single(as_list(tensors), "recv")
        if (other := self._carrier(tensor)) is not None:
            return other.recv(tensors, src, tag)
        buffer = dense(tensor, "recv")
        message = Operation(Kind.RECEIVE, count=buffer.nbytes, target=buffer.data_ptr(), root=src, tag=tag)
        message.timeout_s = self._timeout_s
        return self._pending(self._core.run(message), [tensor], buffer, _copy_back_one(tensor, buffer))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receive a tensor from the first rank that sends; the work's `source_rank` names it."""
        return self.recv(tensors, ANY_RANK, tag)

    # Names that torch used before 2.13, and still calls if they exist.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _elsewhere(self, tensor: torch.Tensor) -> Any:
        """Return the group for the tensor's device, or None; `dense` then raises an error that names the device."""
        return None

    def _carrier(self, tensor: torch.Tensor) -> Any:
        """Return the group that carries a message of this tensor, None for this one.

        Not `_elsewhere`: only the two ranks of a message know of it, so that nothing may be agreed with the others.
        """
        return None

    def _elsewhere_any(self, tensors: Tensors) -> Any:
        return self._elsewhere(tensors[0]) if len(tensors) > 0 and not tensors[0].is_cpu else None

    def _reduce_all(self, tensor: torch.Tensor, opts: Any) -> Work:
        buffer = dense(tensor, "all_reduce")
        op, complete = reduction_of(buffer, opts, self._num_ranks)
        count, dtype = reduced(buffer, op, "all_reduce")
        address, asynchronous = buffer.data_ptr(), is_asynchronous(opts)
        ticket = self._core.all_reduce(
            address, address, count, dtype, op, asynchronous, limit_s_of(opts, self._timeout_s)
        )
        finish = _both(complete, _copy_back_one(tensor, buffer))
        return self._work(ticket, asynchronous, [tensor], buffer, finish)

    def _reduce_flat(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Reduce tensors of one type in place, as one."""
        if len(tensors) == 1:
            return self._reduce_all(tensors[0], opts)
        flat = torch.cat([dense(tensor, "all_reduce_coalesced").detach().reshape(-1) for tensor in tensors])
        op, complete = reduction_of(flat, opts, self._num_ranks)
        count, dtype = reduced(flat, op, "all_reduce_coalesced")
        parts = flat.split([tensor.numel() for tensor in tensors])
        finish = _both(complete, partial(_copy_back, list(zip(tensors, parts, strict=True))))
        asked = Operation(Kind.ALL_REDUCE, dtype, count, flat.data_ptr(), flat.data_ptr(), reduction=op)
        return self._run(asked, opts, tensors, flat, finish)

    def _reduce_scatter(
        self, output: torch.Tensor, source: int, sources: list[int] | None, held: Any, opts: Any
    ) -> Work:
        buffer = dense(output, "reduce_scatter")
        op, complete = reduction_of(buffer, opts, self._num_ranks)
        count, dtype = reduced(buffer, op, "reduce_scatter")
        finish = _both(complete, _copy_back_one(output, buffer))
        if sources is not None:
            asked = Operation(Kind.REDUCE_SCATTER, dtype, count, 0, buffer.data_ptr(), reduction=op)
            asked.chunks = Chunks(sources=sources)
            return self._run(asked, opts, [output], (held, buffer), finish)
        asynchronous = is_asynchronous(opts)
        ticket = self._core.reduce_scatter(
            source, buffer.data_ptr(), count, dtype, op, asynchronous, limit_s_of(opts, self._timeout_s)
        )
        return self._work(ticket, asynchronous, [output], (held, buffer), finish)

    def _reduce_each(self, output: torch.Tensor, inputs: Tensors, opts: Any) -> Work:
        """Reduce tensors of different sizes, each to its rank."""
        buffer = dense(output, "reduce_scatter")
        op, complete = reduction_of(buffer, opts, self._num_ranks)
        works = []
        for root, tensor in enumerate(inputs):
            source = dense(tensor, "reduce_scatter")
            count, dtype = reduced(source, op, "reduce_scatter")
            target = buffer.data_ptr() if root == self._own_rank else 0
            asked = Operation(Kind.REDUCE, dtype, count, source.data_ptr(), target, reduction=op, root=root)
            finish = _both(complete, _copy_back_one(output, buffer)) if target else None
            works.append(self._run(asked, opts, [output], (source, buffer), finish))
        return _joint(works, [output])

    def _run(
        self,
        asked: Operation,
        opts: Any,
        results: Tensors,
        held: Any = None,
        finish: Callable[[], None] | None = None,
    ) -> Work:
        """Start a collective in the core; return the work that torch waits on.

        Args:
            asked: the operation; `opts` set its time limit, and whether it is asynchronous.
        """
        asked.asynchronous = asynchronous = is_asynchronous(opts)
        asked.timeout_s = limit_s_of(opts, self._timeout_s)
        return self._work(self._core.run(asked), asynchronous, results, held, finish)

    def _read(self, ticket: int, opts: Any, results: Tensors, held: Any) -> Work:
        """Return the work of a collective that the core has started on tensors that it read itself.

        Args: as `_work`.
        """
        self._num_issued += 1
        if ticket:
            return self._pending(ticket, results, held)
        return self._ended(results) if opts.asyncOp else ENDED

    def _work(
        self,
        ticket: int,
        asynchronous: bool,
        results: Tensors,
        held: Any = None,
        finish: Callable[[], None] | None = None,
    ) -> Work:
        """Return the work that torch waits on for a collective that the core has started."""
        self._num_issued += 1
        if ticket:
            return self._pending(ticket, results, held, finish)
        if finish is not None:
            finish()
        return self._ended(results) if asynchronous else ENDED

    def _ended(self, results: Tensors) -> EndedWork:
        work = EndedWork(results)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return _kept(work)

    def _pending(
        self, ticket: int, results: Tensors, held: Any, finish: Callable[[], None] | None = None
    ) -> PendingWork:
        work = PendingWork(self._core, ticket, self._completion, results, held, finish)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return _kept(work)

    def _one_a_rank(self, items: Sequence[Any], operation: str) -> Sequence[Any]:
        if len(items) != self._num_ranks:
            raise ValueError(
                f"backend smddp: {operation} takes one tensor per rank, {self._num_ranks} in all, got {len(items)}"
            )
        return items

    def _split(self, buffer: torch.Tensor, rows: Sequence[int], side: str) -> tuple[list[int], int]:
        """Return the number of elements in each part of a buffer, and their type, as the core counts them."""
        count, dtype = moved(buffer)
        num_rows = buffer.size(0) if buffer.dim() else 0
        if not rows:
            if num_rows % self._num_ranks:
                raise ValueError(
                    f"backend smddp: all_to_all_single: {num_rows} rows of {side} do not divide by "
                    f"{self._num_ranks} ranks; pass {side}_split_sizes"
                )
            return [count // self._num_ranks] * self._num_ranks, dtype
        self._one_a_rank(rows, f"all_to_all_single ({side}_split_sizes)")
        if sum(rows) != num_rows or min(rows) < 0:
            raise ValueError(
                f"backend smddp: all_to_all_single: {side}_split_sizes {list(rows)} are {sum(rows)} rows, "
                f"{side} has {num_rows}"
            )
        row = count // num_rows if num_rows else 0
        return [part * row for part in rows], dtype


def _kept(work: AnyWork) -> AnyWork:
    """Return a work after keeping it alive: Python may drop it while C++ holds it."""
    if keeping.IS_NEEDED:
        keeping.keep(work)
    return work


def _op_in(given: Any) -> Any:
    """Return the reduction given in place of options, or None."""
    return given if isinstance(given, dist.ReduceOp) else None


def _joint(works: list[Work], results: Tensors) -> Work:
    if len(works) == 1:
        return works[0]
    if all(work is ENDED for work in works):
        return EndedWork(results)
    return _kept(JointWork(works, results))


def _written(outputs: Tensors, operation: str) -> tuple[list[torch.Tensor], Callable[[], None] | None]:
    """Return buffers for tensors to be written, and a function that copies back, or None if no buffer is a copy."""
    buffers = [dense(output, operation) for output in outputs]
    copies = [pair for pair in zip(outputs, buffers, strict=True) if pair[0] is not pair[1]]
    return buffers, partial(_copy_back, copies) if copies else None


def _both(first: Callable[[], None] | None, second: Callable[[], None] | None) -> Callable[[], None] | None:
    """Return a function that calls two functions in this order, each of which may be missing."""
    if first is None or second is None:
        return first or second

    def call() -> None:
        first()
        second()

    return call


def _copy_back_one(tensor: torch.Tensor, buffer: torch.Tensor) -> Callable[[], None] | None:
    return None if tensor is buffer else partial(_copy_back, [(tensor, buffer)])


def _copy_back(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for tensor, buffer in pairs:
            tensor.copy_(buffer.view_as(tensor))


def _check_types(tensors: Tensors, like: torch.Tensor, operation: str) -> None:
    for index, tensor in enumerate(tensors):
        if tensor.dtype is not like.dtype:
            raise TypeError(
                f"backend smddp: {operation}: tensor {index} has type {tensor.dtype}, expected {like.dtype}"
            )


def _check_share(
    whole: torch.Tensor, part: torch.Tensor, num_ranks: int, operation: str, whole_name: str, part_name: str
) -> None:
    _check_types([whole], part, operation)
    if whole.numel() != part.numel() * num_ranks:
        raise ValueError(
            f"backend smddp: {operation}: {whole_name} has {whole.numel()} elements, expected "
            f"{part.numel() * num_ranks}: {num_ranks} ranks times {part.numel()} of {part_name}"
        )
