"""The last collectives of a process, recorded for the agent of its host: the record survives the process.

Where: `train.operation_record` maps one file per process into memory, in the folder that `step_records.FOLDER_VARIABLE`
names. In a host with a `/dev/shm` of its own, the file is in `/dev/shm` and the folder has a link to it: a memory write
to a file on disk may wait for the disk. `train.steps` and the cores of `train.collective` write rows into it, the
compiled core from C++ (native/src/engine/call_record.hpp). `agent.autopsy.call_records` reads them while they are
written. A file consists of a header and slots, one for each group of ranks in the order of first use; a slot describes
its group and has a ring buffer of rows:

    0      magic, rank, process, number of groups without a slot
    64     slot 0: group (128 bytes), then row of operation N at N % NUM_ROWS
    576    slot 1, ...

A row has its number at both ends, and is written from its beginning to its end. So a row that is being written differs
between two reads, or its two numbers differ. Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine
share.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from clary.contract.ml_tree import OPT_ML
from clary.contract.step_records import FOLDER

SWITCH_VARIABLE = "CLARY_CALLS"  # 0: no calls are recorded
ENDING = ".calls"  # suffix of a file's name, RANK-PROCESS.calls
# Folder for programs in hosts with namespaces, where files in shared memory disappear with the host.
FOLDER_IN_NAMESPACES = str(OPT_ML.joinpath(*FOLDER))
MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - of the host's own view
_IN_MEMORY = re.compile(rf"{MEMORY_FOLDER}/clary-[0-9]{{1,10}}-[0-9]{{1,10}}-[0-9a-f]{{16}}\{ENDING}")

NUM_SLOTS = 64  # groups of a process
NUM_ROWS = 8  # rows of a group; a power of two
HEADER_BYTES = 64
GROUP_BYTES = 128
MAX_LISTED_RANKS = 10  # limit for a group whose ranks are not evenly spaced

_MAGIC = b"CLARYCO1"
_HEADER = struct.Struct("<8sqqq")
LEFT_OUT_OFFSET = 24  # offset of the number of groups without a slot
_GROUP = struct.Struct("<q6i40s16s10i")  # generation, size, rank in it, first, stride, listed, flags, name, kind, ranks
_NAME_BYTES, _KIND_BYTES = 40, 16
_POINT_TO_POINT = 1  # flag
ROW = struct.Struct("<qqqqiBBBxq")
ROW_BYTES = ROW.size
SLOT_BYTES = GROUP_BYTES + NUM_ROWS * ROW_BYTES
FILE_BYTES = HEADER_BYTES + NUM_SLOTS * SLOT_BYTES
FINISHED_OFFSET, STATE_OFFSET = 16, 38  # offsets in a row
NUMBER = struct.Struct("<q")
_MAX_RANK = 1 << 31

# States. A rank is blocked in a call that has not returned, or in the wait for its result.
ENTERED, UNDER_WAY, WAITED_FOR, FINISHED, FAILED = range(5)
STATES = ("entered", "under way", "waited for", "finished", "failed")
NO_PEER = -1

# Indexed by code; codes 1 to 11 are those of `clary_collective` in native/include/clary/collectives.h, plus 1.
OPERATIONS = (
    "an operation",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
    "send",
    "recv",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "all_reduce_coalesced",
    "all_gather_coalesced",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
    "gradients",  # gradients of one backward pass of DistributedDataParallel
)
# Indexed by code; codes 1 to 10 are those of `clary_dtype` in that header, plus 1.
DTYPES = (
    "",
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
)
OPERATION_CODES = {name: code for code, name in enumerate(OPERATIONS)}
DTYPE_CODES = {name: code for code, name in enumerate(DTYPES)}


class GroupFacts(NamedTuple):
    """A group of ranks, as one of its ranks knows it.

    Attributes:
        name: name of the group, equal on all its ranks.
        kind: kind of backend: gloo, nccl, smddp; DDP for gradients.
        size: number of its ranks.
        rank: rank of this process in the group; -1 if unknown.
        ranks: the group's ranks in the job; empty if unknown. Evenly spaced ranks that were read are a range, because a
            file may claim large groups.
        is_point_to_point: whether rows are sends and receives, which each rank numbers by itself.
    """

    name: str
    kind: str
    size: int
    rank: int = -1
    ranks: Sequence[int] = ()
    is_point_to_point: bool = False


class CallRow(NamedTuple):
    """One operation of one rank.

    Attributes:
        number: number of the operation in its group, from 1.
        started_ns, finished_ns: monotonic times; finished_ns is 0 until the end of the operation is observed.
        num_elements: number of elements of this rank's input, or of one rank's share, as for a scatter or a
            reduce-scatter.
        peer: peer of a send or receive; NO_PEER if the operation has no peer, or accepts any peer.
        operation, dtype: codes.
        state: ENTERED to FAILED; FINISHED if finished_ns is set and the state is not FAILED.
    """

    number: int
    started_ns: int
    finished_ns: int
    num_elements: int
    peer: int
    operation: int
    dtype: int
    state: int


class RecordedGroup(NamedTuple):
    """A group with its complete rows, the newest first."""

    facts: GroupFacts
    rows: tuple[CallRow, ...]


class CallRecord(NamedTuple):
    """Content of one file."""

    rank: int
    process: int  # the process's own pid; in a host's namespace it differs from the machine's pid
    num_left_out: int  # groups without a slot
    groups: tuple[RecordedGroup, ...]


def memory_path(rank: int, process: int, mark: str) -> str:
    """Return the path of a record in shared memory.

    Args:
        rank: rank of the process.
        process: process id as the process sees it.
        mark: 16 hexadecimal digits, which distinguish the record from records of other programs.
    """
    return f"{MEMORY_FOLDER}/clary-{rank}-{process}-{mark}{ENDING}"


def is_memory_path(path: str) -> bool:
    """Whether a path has the form of a record in shared memory; checked because programs write the links."""
    return _IN_MEMORY.fullmatch(path) is not None


def pack_header(rank: int, process: int) -> bytes:
    """Return the bytes of a file's header."""
    return _HEADER.pack(_MAGIC, rank, process, 0).ljust(HEADER_BYTES, b"\0")


def slot_offset(index: int) -> int:
    """Return the offset of a group's slot in the file."""
    return HEADER_BYTES + index * SLOT_BYTES


def pack_group(facts: GroupFacts, generation: int) -> bytes:
    """Return the bytes of a slot's group description.

    Args:
        generation: starts at 1 and grows with each group of the process; among groups with the same name, only the
            newest is valid.
    """
    first, stride, listed = _compact(facts.ranks)
    return _GROUP.pack(
        generation,
        facts.size,
        facts.rank,
        first,
        stride,
        len(listed),
        _POINT_TO_POINT if facts.is_point_to_point else 0,
        _short(facts.name),
        facts.kind.encode("utf-8", "replace")[:_KIND_BYTES],
        *listed,
        *[0] * (MAX_LISTED_RANKS - len(listed)),
    )


def pack_row(row: CallRow) -> bytes:
    """Return the bytes of a row."""
    return ROW.pack(*row, row.number)


def read_record(data: bytes, again: bytes) -> CallRecord | None:
    """Return the content of a file, or None if it is not a file of records.

    Args:
        data, again: the whole file, read twice in a row.
    """
    if len(data) != FILE_BYTES or len(again) != FILE_BYTES:
        return None
    magic, rank, process, num_left_out = _HEADER.unpack_from(data)
    if magic != _MAGIC or not 0 <= rank < _MAX_RANK:
        return None
    newest: dict[tuple[str, str, bool], tuple[int, RecordedGroup]] = {}
    for index in range(NUM_SLOTS):
        begin = slot_offset(index)
        header = data[begin : begin + GROUP_BYTES]
        if header != again[begin : begin + GROUP_BYTES]:
            continue
        generation, facts = _read_group(header)
        if generation < 1:
            continue
        key = (facts.name, facts.kind, facts.is_point_to_point)
        if key not in newest or newest[key][0] < generation:
            newest[key] = (generation, RecordedGroup(facts, _read_rows(data, again, begin + GROUP_BYTES)))
    return CallRecord(rank, process, max(0, num_left_out), tuple(group for _, group in newest.values()))


def _read_rows(data: bytes, again: bytes, begin: int) -> tuple[CallRow, ...]:
    rows = []
    for offset in range(begin, begin + NUM_ROWS * ROW_BYTES, ROW_BYTES):
        if data[offset : offset + ROW_BYTES] != again[offset : offset + ROW_BYTES]:
            continue
        *values, last = ROW.unpack_from(data, offset)
        row = _settled(CallRow(*values))
        is_possible = row.num_elements >= 0 and row.started_ns >= 0 and row.finished_ns >= 0 and row.state < len(STATES)
        if row.number == last > 0 and is_possible:
            rows.append(row)
    return tuple(sorted(rows, key=lambda row: -row.number))


def _settled(row: CallRow) -> CallRow:
    """Return a row with its state, derived from its times; writers may leave the state unchanged."""
    return row._replace(state=FINISHED) if row.finished_ns > 0 and row.state < FINISHED else row


def _read_group(header: bytes) -> tuple[int, GroupFacts]:
    generation, size, rank, first, stride, num_listed, flags, name, kind, *listed = _GROUP.unpack(header)
    ranks: Sequence[int] = ()
    if 0 < num_listed <= MAX_LISTED_RANKS:
        ranks = tuple(listed[:num_listed])
    elif stride > 0 and size > 0 and first + stride * size < _MAX_RANK:
        ranks = range(first, first + stride * size, stride) if size <= _MAX_SIZE else ()
    facts = GroupFacts(
        name=name.rstrip(b"\0").decode("utf-8", "replace"),
        kind=kind.rstrip(b"\0").decode("utf-8", "replace"),
        size=max(0, size),
        rank=rank,
        ranks=ranks,
        is_point_to_point=bool(flags & _POINT_TO_POINT),
    )
    return generation, facts


_MAX_SIZE = 1 << 16  # largest group whose ranks are known: a file may claim any size


def _compact(ranks: Sequence[int]) -> tuple[int, int, tuple[int, ...]]:
    """Return first rank and stride of evenly spaced ranks, else the ranks themselves, or () if there are too many."""
    if not ranks:
        return -1, 0, ()
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if stride > 0 and list(ranks) == list(range(ranks[0], ranks[0] + stride * len(ranks), stride)):
        return ranks[0], stride, ()
    return -1, 0, tuple(ranks) if len(ranks) <= MAX_LISTED_RANKS else ()


def _short(name: str) -> bytes:
    """Return a name cut to its field; long names stay different from each other."""
    whole = name.encode("utf-8", "replace")
    if len(whole) <= _NAME_BYTES:
        return whole
    check = f"~{zlib.crc32(whole):08x}".encode("ascii")
    return whole[: _NAME_BYTES - len(check)] + check
