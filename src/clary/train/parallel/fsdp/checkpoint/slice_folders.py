"""Slice folders that record their slice, so that no slice is overwritten by another or loaded in its place.

Where: `additions` patches these methods into torch's file system writer and reader, the base classes of ours. The
planning rank writes `slice.json` beside the data before any rank writes data.

If the folder of a slice is missing, its tensors are read from the slices of another degree beside it, or from the whole
checkpoint in the folder above. If a whole checkpoint is missing, its tensors are read from the slices in the folders
below it. Each rank reads only the tensors that it needs. In S3, where folders are not listed, only the named folder is
read.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, LoadPlan
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.futures import Future

from clary.train.parallel.fsdp.checkpoint.slices import Place, Slice, merge, parameter_of
from clary.train.parallel.fsdp.state import state

_FILE = "slice.json"
_METADATA = ".metadata"
_MERGED = "_clary_merged_slices"  # attribute of a reader that merges slices of other degrees


@dataclasses.dataclass(frozen=True)
class _Merged:
    readers: list[Any]
    places: Mapping[Any, Place]


def own_slice() -> Slice:
    """Return the slice that this rank holds of the models whose sharded states were requested."""
    if state.ep_size > 1:
        return Slice("ep", state.ep_rank, state.ep_size, state.slice_cuts)
    return Slice("tp", state.tp_rank, state.tp_size, state.slice_cuts)


def folder_additions() -> list[tuple[type, str, Any]]:
    """Return (class, name, replacement) for each patched method of torch's writer and reader."""
    return [
        (FileSystemWriter, "prepare_global_plan", _claiming(FileSystemWriter.prepare_global_plan)),
        (FileSystemReader, "read_metadata", _finding(FileSystemReader.read_metadata)),
        (FileSystemReader, "read_data", _reading(FileSystemReader.read_data)),
    ]


def _claiming(original: Any) -> Any:
    @functools.wraps(original)
    def prepare(writer: Any, plans: list[Any]) -> Any:
        own = own_slice()
        if own.of > 1 and any(_is_of_slices(plan, own) for plan in plans):
            _claim(writer.fs, writer.path, own)
        return original(writer, plans)

    return prepare


def _is_of_slices(plan: Any, own: Slice) -> bool:
    paths = plan.planner_data or {}
    for item in plan.items:
        name = parameter_of(paths.get(item.index.fqn, ()), own.cuts) if item.tensor_data else None
        if name is not None and (not (cut := own.cuts[name]).parts or _is_slice(item.tensor_data.size, cut)):
            return True
    return False


def _is_slice(size: Sequence[int], cut: Any) -> bool:
    return bool(len(size) > cut.dim and size[cut.dim] != cut.length)


def _claim(fs: Any, path: Any, own: Slice) -> None:
    """Write this rank's slice into the folder's `slice.json`.

    Raises: ValueError if the folder holds another slice, or a rank is writing another slice there.
    """
    at, text = fs.concat_path(path, _FILE), json.dumps(own.as_json()).encode()
    held = _held(fs, path)
    if held is None and isinstance(at, Path):
        try:
            with at.open("xb") as file:
                file.write(text)
                return
        except FileExistsError:  # a rank of another slice wrote it at the same time
            held = _held(fs, path)
    if held is not None and (held.axis, held.number, held.of) != (own.axis, own.number, own.of):
        raise ValueError(
            f"{path} holds slice {held.name}, and slice {own.name} was to be saved there: save each slice into a "
            f"folder of its own, such as {own.name}, or remove what is there"
        )
    if held != own:
        with fs.create_stream(at, "wb") as stream:
            stream.write(text)


def _held(fs: Any, path: Any) -> Slice | None:
    """Return the slice in a folder's `slice.json`, or None without the file.

    Raises: ValueError if the file is damaged.
    """
    at = fs.concat_path(path, _FILE)
    if not fs.exists(at):
        return None
    with fs.create_stream(at, "rb") as stream:
        text = stream.read()
    try:
        return Slice.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{at} does not say which slice is there ({error!r}): save the checkpoint again") from None


def has_sources(reader: Any) -> bool:
    """Return whether a missing checkpoint can be read from other folders; False before `tsm.init`."""
    return state.configuration is not None and find_sources(reader) is not None


def _finding(original: Any) -> Any:
    @functools.wraps(original)
    def read_metadata(reader: Any, *args: Any, **kwargs: Any) -> Any:
        vars(reader).pop(_MERGED, None)
        if args or kwargs:  # the metadata of one rank's own file; checkpoints of slices have no such file
            return original(reader, *args, **kwargs)
        sources = find_sources(reader, original)
        if sources is None:
            return original(reader)
        readers = [_at(reader, path) for _, path in sources]
        found = [original(one) for one in readers]
        for one, metadata in zip(readers, found, strict=True):
            one.storage_data = metadata.storage_data
        told = [slice_ for slice_, _ in sources]
        merged, places = merge(list(zip(told, found, strict=True)), own_slice())
        merged.storage_data = {}  # `places` holds the locations instead
        setattr(reader, _MERGED, _Merged(readers, places))
        return merged

    return read_metadata


def find_sources(reader: Any, read: Any = None) -> list[tuple[Slice, Any]] | None:
    """Return the (slice, folder) pairs to read in place of the reader's folder; None to read that folder itself.

    Raises: ValueError if the folder holds another slice than this rank needs, or if several sets of slices would fit.
    """
    own, fs, path = own_slice(), reader.fs, reader.path
    if fs.exists(fs.concat_path(path, _METADATA)):
        held = _held(fs, path)
        if held is None:
            is_whole = own.of > 1 and _is_whole(read(reader), own)
            return [(Slice(own.axis, 0, 1, {}), path)] if is_whole else None
        if (held.axis, held.number, held.of) == (own.axis, own.number, own.of):
            return None
        raise ValueError(
            f"{path} holds slice {held.name}; this rank needs "
            f"{(own.name if own.of > 1 else 'the whole')}: give the folder for that; if the folder does "
            "not exist, its content is put together from slices beside it or below it"
        )
    if "://" in str(path):
        return None
    above = os.path.dirname(str(path).rstrip("/"))
    for base in (str(path), above):
        if sets := _sets_below(fs, base):
            if len(sets) > 1:
                names = ", ".join(one[0][0].name for one in sets)
                raise ValueError(
                    f"{path} is no checkpoint; it could be put together from several sets of slices, which begin "
                    f"with {names}: remove all sets but one"
                )
            return sets[0]
    at = fs.init_path(above) if above else path
    is_above = own.of > 1 and fs.exists(fs.concat_path(at, _METADATA)) and _held(fs, at) is None
    return [(Slice(own.axis, 0, 1, {}), at)] if is_above else None


def _is_whole(metadata: Metadata, own: Slice) -> bool:
    """Return whether a checkpoint holds whole parameters where this rank holds slices."""
    for key, one in metadata.state_dict_metadata.items():
        name = parameter_of((metadata.planner_data or {}).get(key, ()), own.cuts)
        if name is not None and isinstance(one, TensorStorageMetadata) and len(one.size) > own.cuts[name].dim:
            return bool(one.size[own.cuts[name].dim] == own.cuts[name].length)
    return False


def _sets_below(fs: Any, base: str) -> list[list[tuple[Slice, Any]]]:
    """Return the complete sets of finished slices in the subfolders of a folder, each ordered by slice number."""
    found: dict[tuple[str, int], dict[int, tuple[Slice, Any]]] = {}
    for folder in sorted(Path(base).iterdir()) if Path(base).is_dir() else ():
        held = _held(fs, folder) if fs.exists(fs.concat_path(folder, _METADATA)) else None
        if held is not None:
            found.setdefault((held.axis, held.of), {})[held.number] = (held, folder)
    return [[one[at] for at in range(of)] for (_, of), one in found.items() if len(one) == of]


def _at(reader: Any, path: Any) -> Any:
    """Copy a reader, with another folder."""
    one = copy.copy(reader)
    one.path = reader.fs.init_path(path)
    return one


def _reading(original: Any) -> Any:
    @functools.wraps(original)
    def read_data(reader: Any, plan: Any, planner: Any) -> Any:
        merged = vars(reader).get(_MERGED)
        if merged is None:
            return original(reader, plan, planner)
        by_source: dict[int, list[Any]] = {}
        for item in plan.items:
            place = merged.places[item.storage_index.fqn, item.storage_index.offset]
            by_source.setdefault(place.source, []).append(_moved(item, place))
        for source, items in by_source.items():
            original(merged.readers[source], LoadPlan(items), planner).wait()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    return read_data


def _moved(item: Any, place: Place) -> Any:
    """Return a plan's item with its index and offsets in the source folder."""
    offsets = (
        [one + more for one, more in zip(item.storage_offsets, place.offsets, strict=True)] if place.offsets else []
    )
    storage_offsets = type(item.storage_offsets)(offsets) if place.offsets else item.storage_offsets
    return dataclasses.replace(item, storage_index=place.index, storage_offsets=storage_offsets)
