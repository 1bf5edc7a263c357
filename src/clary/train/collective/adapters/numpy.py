"""NumPy arrays over a group, with MPI's names: ranks that send, reduce and gather arrays without a framework.

    from clary.train.collective.adapters.numpy import init

    with init() as comm:                     # reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
        total = comm.all_reduce(gradients)   # a new array
        comm.all_reduce(gradients, out=gradients)  # in place

Where: on top of `communicator`, with a `tcp_store` on rank 0. Every rank makes the same calls in the same order.

Arrays must be C-contiguous, aligned, and of a type that cores know. They are not converted or copied; any other array
raises TypeError or ValueError with the fix. Results are new arrays unless `out` names one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from clary.train._native import core
from clary.train._native.interface import ANY_RANK, Dtype, ReduceOp
from clary.train.collective.bootstrap.tcp_store import TcpStore
from clary.train.collective.buffers import Buffer
from clary.train.collective.communicator import Communicator, open_group
from clary.train.collective.settings import CollectiveSettings
from clary.train.collective.work import Work
from clary.train.rank_variables import with_ranks_of_mpirun

if TYPE_CHECKING:
    from typing_extensions import Self  # part of typing since Python 3.11

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZE_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_PORT_VARIABLE = "MASTER_PORT"
_TORCHRUN_VARIABLE = "TORCHELASTIC_USE_AGENT_STORE"  # "True": torchrun's own store listens on MASTER_PORT
_DTYPES = {
    "float32": Dtype.FLOAT32,
    "float64": Dtype.FLOAT64,
    "float16": Dtype.FLOAT16,
    "bfloat16": Dtype.BFLOAT16,  # type of the package ml_dtypes
    "int8": Dtype.INT8,
    "int16": Dtype.INT16,
    "int32": Dtype.INT32,
    "int64": Dtype.INT64,
    "uint8": Dtype.UINT8,
    "bool": Dtype.BOOL,
}


def init(
    environ: Mapping[str, str] = os.environ,
    *,
    rank: int | None = None,
    size: int | None = None,
    address: str | None = None,
    port: int | None = None,
    group_name: str = "world",
    settings: CollectiveSettings | None = None,
) -> World:
    """Form the group of all ranks. Omitted arguments are read from the environment.

    Args:
        address: address of rank 0's host.
        port: port of rank 0's store.

    Raises:
        ValueError: a variable is missing or invalid.
        BootstrapError: the group could not be formed; the text names the missing ranks.
    """
    environ = with_ranks_of_mpirun(environ)
    settings = settings or CollectiveSettings.from_environment(environ)
    rank = _number(environ, _RANK_VARIABLES) if rank is None else rank
    size = _number(environ, _SIZE_VARIABLES) if size is None else size
    if size == 1:
        return World(open_group(None, rank=rank, size=size, group_name=group_name, settings=settings))
    address = address or settings.master_address
    if not address:
        raise ValueError("MASTER_ADDR is not set: name rank 0's host there, or pass address=")
    store = TcpStore(
        address,
        _port(environ, settings) if port is None else port,
        rank=rank,
        secret=settings.secret,
        timeout_s=settings.connect_timeout_s,
    )
    try:
        return World(open_group(store, rank=rank, size=size, group_name=group_name, settings=settings), store)
    except BaseException:
        store.close()
        raise


class World:
    """A group of ranks that exchange arrays; `split` makes smaller groups.

    Methods raise TypeError or ValueError for unsuitable arrays, before sending, and CollectiveError if the operation
    failed; then the group cannot be used any more. Close it, or use it in a `with` statement.
    """

    def __init__(self, communicator: Communicator, store: TcpStore | None = None) -> None:
        self.communicator = communicator
        self._store = store  # None in groups from `split`, since the first group owns the store

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self.communicator.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.communicator.size

    def all_reduce(
        self, array: np.ndarray, op: ReduceOp | str = ReduceOp.SUM, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Reduce the arrays of all ranks, element by element.

        Args:
            array: of any shape, the same on all ranks.
            op: a ReduceOp or its name, such as `sum`.
            out: array for the result; `array` itself to reduce in place, None for a new array.
        """
        source = _buffer(array, "array")
        if out is array:
            self.communicator.all_reduce(source if source.dtype is Dtype.BFLOAT16 else array, op=op)
            return array
        result = self._room(array.shape, array.dtype, out)
        self.communicator.all_reduce(source, _buffer(result, "out"), op=op)
        return result

    def allgather(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Collect the arrays of all ranks: shape [size, *array.shape]."""
        source = _buffer(array, "array")
        result = self._room((self.size, *array.shape), array.dtype, out)
        self.communicator.all_gather(source, _buffer(result, "out"))
        return result

    def reduce_scatter(
        self, array: np.ndarray, op: ReduceOp | str = ReduceOp.SUM, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Reduce the arrays and keep this rank's part of axis 0, whose length must be a multiple of `size`.

        Args:
            array: [size * rows, ...], the same shape on all ranks.
            op: a ReduceOp or its name, such as `sum`.
            out: [rows, ...], written and returned; None for a new array.
        """
        source = _buffer(array, "array")
        result = self._room((self._part_of_axis(array), *array.shape[1:]), array.dtype, out)
        self.communicator.reduce_scatter(source, _buffer(result, "out"), op=op)
        return result

    def bcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        """Overwrite `array` on all ranks with the root's array; return it."""
        self.communicator.broadcast(_buffer(array, "array"), root=root)
        return array

    def alltoall(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Cut axis 0 into equal parts, send each rank its part, and receive a part from each rank, in rank order."""
        source = _buffer(array, "array")
        self._part_of_axis(array)
        result = self._room(array.shape, array.dtype, out)
        self.communicator.all_to_all(source, _buffer(result, "out"))
        return result

    def alltoallv(
        self,
        array: np.ndarray,
        send_counts: Sequence[int],
        receive_counts: Sequence[int],
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Exchange rows of axis 0 with every rank; the number of rows may differ by rank.

        Args:
            array: [sum(send_counts), ...].
            send_counts: rows for each rank, by rank.
            receive_counts: rows from each rank, by rank; each number must equal the entry for this rank in that rank's
                `send_counts`.
            out: [sum(receive_counts), ...], written and returned; None for a new array.
        Raises: ValueError if `array` has another number of rows.
        """
        source = _buffer(array, "array")
        if array.ndim < 1 or array.shape[0] != sum(send_counts):
            raise ValueError(
                f"array of shape {array.shape} does not have the {sum(send_counts)} rows that send_counts asks for"
            )
        result = self._room((sum(receive_counts), *array.shape[1:]), array.dtype, out)
        row_elements = int(np.prod(array.shape[1:], dtype=np.int64))
        self.communicator.all_to_all(
            source,
            _buffer(result, "out"),
            send_counts=[count * row_elements for count in send_counts],
            receive_counts=[count * row_elements for count in receive_counts],
        )
        return result

    def gather(self, array: np.ndarray, root: int = 0, out: np.ndarray | None = None) -> np.ndarray | None:
        """Collect the arrays of all ranks on the root, shape [size, *array.shape]; return None on other ranks.

        Args:
            array: of any shape, the same on all ranks.
            root: rank that collects.
            out: array for the root's result; None for a new array.
        """
        source = _buffer(array, "array")
        if self.rank != root:
            self.communicator.gather(source, root=root)
            return None
        result = self._room((self.size, *array.shape), array.dtype, out)
        self.communicator.gather(source, _buffer(result, "out"), root=root)
        return result

    def scatter(self, array: np.ndarray | None, out: np.ndarray, root: int = 0) -> np.ndarray:
        """Give each rank its row of the root's `array`, shape [size, *out.shape]; other ranks pass None as `array`.

        Raises: ValueError if `array` has another shape.
        """
        target = _buffer(out, "out")
        source = None if array is None else _buffer(array, "array")
        if self.rank == root and array is not None and array.shape != (self.size, *out.shape):
            raise ValueError(f"array has shape {array.shape}, expected {(self.size, *out.shape)}")
        self.communicator.scatter(source, target, root=root)
        return out

    def send(self, array: np.ndarray, peer: int, tag: int = 0) -> None:
        """Send an array to a rank; after the call the array may be changed.

        Args:
            array: of any shape; sent as bytes.
            peer: rank that receives.
            tag: tag of the `recv` that receives it.
        """
        self.isend(array, peer, tag).wait()

    def recv(self, array: np.ndarray, peer: int = ANY_RANK, tag: int = 0) -> int:
        """Receive a message from one rank, or from any rank, into `array`; return the sender's rank.

        Args:
            array: must have as many bytes as the message.
            peer: rank that sends, or ANY_RANK.
            tag: tag of the `send`.
        """
        work = self.irecv(array, peer, tag)
        work.wait()
        return work.source

    def isend(self, array: np.ndarray, peer: int, tag: int = 0) -> Work:
        """Begin to send; `array` must not be changed until the work has ended.

        Args: as `send`.
        """
        return self.communicator.send(_buffer(array, "array"), peer, tag=tag)

    def irecv(self, array: np.ndarray, peer: int = ANY_RANK, tag: int = 0) -> Work:
        """Begin to receive; `array` is undefined until the work has ended.

        Args: as `recv`.
        """
        return self.communicator.receive(_buffer(array, "array"), peer, tag=tag)

    def barrier(self) -> None:
        """Wait until all ranks have called `barrier`."""
        self.communicator.barrier()

    def split(self, color: int | None, key: int = 0) -> World | None:
        """Form a group of the ranks with equal `color`, ordered by `key`, then rank. All ranks call it.

        Returns: None for the color None.
        """
        choices = self.allgather(np.array([color is not None, color or 0, key], dtype=np.int64))
        members = [
            (int(their_key), rank)
            for rank, (has_color, their_color, their_key) in enumerate(choices)
            if has_color and their_color == color
        ]
        group = self.communicator.subgroup([rank for _, rank in sorted(members)])
        return None if group is None else World(group)

    def close(self) -> None:
        """Leave the group. A second call does nothing."""
        self.communicator.close()
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.communicator.__exit__(kind, error, trace)
        self.close()

    def _part_of_axis(self, array: np.ndarray) -> int:
        if array.ndim < 1 or array.shape[0] % self.size:
            raise ValueError(f"axis 0 of an array of shape {array.shape} is no multiple of {self.size} ranks: pad it")
        return int(array.shape[0]) // self.size

    @staticmethod
    def _room(shape: tuple[int, ...], dtype: np.dtype, out: np.ndarray | None) -> np.ndarray:
        """Return the array for a result: `out`, whose shape must fit, or a new array."""
        if out is None:
            return np.empty(shape, dtype)
        _buffer(out, "out")
        if out.shape != shape:
            raise ValueError(f"out has shape {out.shape}, expected {shape}")
        return out


def _buffer(array: Any, name: str) -> Buffer:
    """Return an array as a Buffer for cores; raises TypeError or ValueError for an unsuitable array."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} is a {type(array).__name__}: pass a numpy array")
    dtype = _dtype_of(array.dtype)
    if dtype is None:
        raise TypeError(
            f"{name} has elements of type {array.dtype}, which collectives do not support: convert it to "
            f"one of {', '.join(_DTYPES)} in this machine's byte order, {name}.astype(...) for example"
        )
    flags = array.flags
    if not flags.c_contiguous or not flags.aligned:
        raise ValueError(
            f"{name} of shape {array.shape} is strided or unaligned memory (strides {array.strides}): pass "
            f"np.ascontiguousarray({name}), and copy a result back yourself"
        )
    return Buffer(_address_of(array, dtype), array.size, dtype, bool(flags.writeable), array)


@cache
def _dtype_of(kind: np.dtype) -> Dtype | None:
    return _DTYPES.get(kind.name) if kind.isnative else None


def _address_of(array: np.ndarray, dtype: Dtype) -> int:
    fast = core.door()
    if fast is None or dtype is Dtype.BFLOAT16:  # bfloat16 has no format in the buffer protocol
        return int(array.ctypes.data)
    return int(fast.address_of(array))


def _number(environ: Mapping[str, str], names: Sequence[str]) -> int:
    """Return the number in the first variable that is set; raises ValueError."""
    for name in names:
        if text := environ.get(name, "").strip():
            if not text.isascii() or not text.isdigit():
                raise ValueError(f"{name} is {text!r}; expected a whole number, 0 or more")
            return int(text)
    raise ValueError(f"none of {', '.join(names)} is set: start this program by a launcher, or pass rank= and size=")


def _port(environ: Mapping[str, str], settings: CollectiveSettings) -> int:
    if settings.port:
        return settings.port
    is_taken = environ.get(_TORCHRUN_VARIABLE) == "True"
    return _number(environ, (_PORT_VARIABLE,)) + (1 if is_taken else 0)
