"""Files that hold one worker's tensors of one step, with an index that shows whether the file is whole.

    0    8 bytes   CLARYTEN
    8    u32       format, 1
    12   u32       CRC-32 of the index
    16   u64       length of the index
    24   u64       length of the file
    32   the index, JSON: step, mode, worker, tensors; then zeros up to a multiple of 64
         the values, each at a multiple of 64

Numbers are little-endian. The index is at the beginning, so that one read fetches it from a store where each read is a
request. Its offsets count from the start of the values. A file is renamed into place, records its own length, and has
checksums of index and values: so a reader detects a file that a crash or a full disk cut short.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clary.train.debugger.errors import TensorFileError
from clary.train.debugger.files import Files
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reduction_config import ALL

FORMAT = 1
ALIGNMENT = 64
ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
_MAGIC = b"CLARYTEN"
_HEAD = struct.Struct("<8sIIQQ")
_FIRST_READ = 64 * 1024  # bytes; enough for the index of a few hundred tensors
_MAX_INDEX = 64 * 1024**2  # bytes; enough for half a million tensors
_MAX_NAME, _MAX_DIMENSIONS = 1024, 64
_WRITE_BYTES = 32 * 1024**2  # upper limit of one write call
_INDEX_KEYS = {"step", "mode", "mode_step", "worker", "num_workers", "written_at", "tensors"}


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """The entry of one tensor in a file's index."""

    name: str
    dtype: str = "float32"
    shape: tuple[int, ...] | None = None
    start: int | None = None  # offset of its values; None if they were not saved
    checksum: int = 0
    reductions: Mapping[str, float] = field(default_factory=dict)
    alias: str = ""  # second name that regular expressions match: `1_output_0` of a ReLU is also `1.relu_output_0`

    @property
    def num_bytes(self) -> int:
        """Number of bytes of the tensor's values."""
        return math.prod(self.shape or ()) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True)
class StepIndex:
    """The index of a file."""

    step: int
    mode: ModeKeys
    mode_step: int
    worker: str
    num_workers: int  # number of workers that save
    written_at: float  # seconds since 1970
    tensors: Mapping[str, TensorEntry] = field(default_factory=dict)
    values_at: int = 0  # offset in the file of the first value


def write_step(path: Path, index: StepIndex, tensors: Sequence[tuple[TensorEntry, memoryview | None]]) -> int:
    """Write a step's file, whole or not at all, and return its length in bytes.

    The file is not synced: after a power failure it may be missing or damaged, which a debugger can tolerate.

    Args:
        tensors: entries without `start`, each with its values as bytes, or None if its values are not saved.

    Raises: OSError; no file is left then.
    """
    described: list[dict[str, Any]] = []
    pieces: list[memoryview] = []
    at = 0
    for entry, values in tensors:
        item: dict[str, Any] = {"name": entry.name, "dtype": entry.dtype, "shape": entry.shape}
        if entry.reductions:
            item["reductions"] = dict(entry.reductions)
        if entry.alias:
            item["alias"] = entry.alias
        if values is not None:
            item |= {"start": at, "checksum": zlib.crc32(values)}
            pieces += [values, memoryview(bytes(_padding(len(values))))]
            at += len(values) + _padding(len(values))
        described.append(item)
    document = {
        "step": index.step,
        "mode": index.mode.name,
        "mode_step": index.mode_step,
        "worker": index.worker,
        "num_workers": index.num_workers,
        "written_at": index.written_at,
        "tensors": described,
    }
    text = json.dumps(document).encode()
    values_at = _HEAD.size + len(text) + _padding(_HEAD.size + len(text))
    head = _HEAD.pack(_MAGIC, FORMAT, zlib.crc32(text), len(text), values_at + at)
    first = (head + text).ljust(values_at, b"\0")
    write_whole(path, [memoryview(first), *pieces])
    return values_at + at


def write_whole(path: Path, pieces: Sequence[memoryview]) -> None:
    """Write a temporary file in the same folder and rename it to `path`.

    Raises: OSError; no file is left then.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb", buffering=0) as file:
            for piece in pieces:
                while piece:
                    piece = piece[file.write(piece[:_WRITE_BYTES]) :]
        beside.rename(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def read_index(files: Files, name: str) -> StepIndex:
    """Read the index of a file, without values.

    Raises: TensorFileError for a file of another kind or an incomplete file; OSError.
    """
    size = files.size(name)
    first = files.read(name, 0, min(size, _FIRST_READ))
    if len(first) < _HEAD.size:
        raise TensorFileError(f"{name} has {size} bytes; a file of tensors has {_HEAD.size} at least: cut short?")
    magic, found, checksum, length, whole = _HEAD.unpack_from(first)
    if magic != _MAGIC:
        raise TensorFileError(f"{name} begins with {magic!r}; a file of tensors begins with {_MAGIC!r}")
    if found != FORMAT:
        raise TensorFileError(f"{name} has format {found}, this release knows {FORMAT}: upgrade Clary")
    if whole != size or length > min(_MAX_INDEX, size - _HEAD.size):
        raise TensorFileError(
            f"{name} has {size} bytes; its header states {whole} bytes in all and {length} for the index: "
            "it was cut short"
        )
    text = first[_HEAD.size : _HEAD.size + length]
    if len(text) < length:
        text += files.read(name, _HEAD.size + len(text), length - len(text))
    if len(text) != length or zlib.crc32(text) != checksum:
        raise TensorFileError(f"{name}: the index does not have the checksum that the file records")
    values_at = _HEAD.size + length + _padding(_HEAD.size + length)
    try:
        return _parse(json.loads(text), values_at, size)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise TensorFileError(f"{name}: its index cannot be read: {error!r}") from error


def read_values(files: Files, name: str, index: StepIndex, entry: TensorEntry) -> bytes:
    """Read a tensor's values.

    Args:
        files: the store with the file.
        name: name of the file.
        index: the file's index, from `read_index`.
        entry: the tensor's entry in the index.
    Raises: TensorFileError if the values are damaged; OSError; ValueError if none were saved.
    """
    if entry.start is None:
        raise ValueError(f"{name} has no values of {entry.name}")
    values = files.read(name, index.values_at + entry.start, entry.num_bytes)
    if len(values) != entry.num_bytes or zlib.crc32(values) != entry.checksum:
        raise TensorFileError(
            f"{name}: the {len(values)} bytes of {entry.name} are not the {entry.num_bytes} that were written: damaged"
        )
    return values


def _parse(document: dict[str, Any], values_at: int, size: int) -> StepIndex:
    if set(document) != _INDEX_KEYS:
        raise ValueError(f"it has {sorted(document)}, expected {sorted(_INDEX_KEYS)}")
    tensors = [_entry(item, size - values_at) for item in document["tensors"]]
    return StepIndex(
        step=_count(document["step"]),
        mode=ModeKeys[document["mode"]],
        mode_step=_count(document["mode_step"]),
        worker=_text(document["worker"]),
        num_workers=_count(document["num_workers"]),
        written_at=float(document["written_at"]),
        tensors={entry.name: entry for entry in tensors},
        values_at=values_at,
    )


def _entry(item: dict[str, Any], room: int) -> TensorEntry:
    shape, start = item.get("shape"), item.get("start")
    reductions = {name: float(value) for name, value in item.get("reductions", {}).items()}
    if not reductions.keys() <= ALL:
        raise ValueError(f"reductions {sorted(reductions)}")
    if shape is not None and len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"{len(shape)} dimensions")
    entry = TensorEntry(
        name=_text(item["name"]),
        dtype=item["dtype"],
        shape=None if shape is None else tuple(_count(length) for length in shape),
        start=None if start is None else _count(start),
        checksum=_count(item.get("checksum", 0)),
        reductions=reductions,
        alias=_text(item["alias"]) if item.get("alias") else "",
    )
    if entry.dtype not in ITEM_BYTES:
        raise ValueError(f"type {entry.dtype!r}")
    if entry.start is not None and (entry.shape is None or entry.start + entry.num_bytes > room):
        raise ValueError(f"{entry.name} ends at {entry.start} + {entry.num_bytes}, the file at {room}")
    return entry


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > _MAX_NAME:
        raise ValueError(f"{str(value)[:80]!r} is no name")
    return value


def _padding(length: int) -> int:
    return -length % ALIGNMENT
