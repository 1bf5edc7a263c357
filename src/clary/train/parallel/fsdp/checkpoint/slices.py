"""The slice that a checkpoint's folder holds, and the search for its data in slices of other degrees.

Where: `slice_folders` writes and reads the files. This module opens none.

    saved by 2 ranks    tp2-0 [0, 8)   tp2-1 [8, 16)     along the dimension that is cut
    wanted by 4         tp4-0 [0, 4)   tp4-1 [4, 8) ...  each part of one saved slice, or of several
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from clary.train.parallel.fsdp.cuts import Axis, Cut, clean_name


@dataclass(frozen=True)
class Slice:
    """Slice `number` of `of` equal slices; with `of` 1, the whole.

    Args:
        cuts: cuts by parameter name; other parameters are whole in every slice.
    """

    axis: Axis
    number: int
    of: int
    cuts: Mapping[str, Cut]

    @property
    def name(self) -> str:
        """Name of the slice's folder in scripts, such as tp2-0."""
        return f"{self.axis}{self.of}-{self.number}"

    def runs(self, name: str, length: int) -> list[tuple[int, int, int]]:
        """Return a parameter's contiguous runs in the slice: offset in the whole, length, offset in the slice."""
        cut = self.cuts.get(name)
        if cut is None or self.of == 1:
            return [(0, length, 0)]
        found, whole_at, own_at = [], 0, 0
        for part in cut.parts:
            share = part // self.of
            found.append((whole_at + self.number * share, share, own_at))
            whole_at, own_at = whole_at + part, own_at + share
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the JSON written into the slice's folder."""
        cuts = {name: [cut.dim, *cut.parts] for name, cut in self.cuts.items()}
        return {"axis": self.axis, "number": self.number, "of": self.of, "cuts": cuts}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Slice:
        """Return the slice from the JSON in its folder."""
        cuts = {name: Cut(told["axis"], cut[0], tuple(cut[1:])) for name, cut in told["cuts"].items()}
        return cls(told["axis"], told["number"], told["of"], cuts)


@dataclass(frozen=True)
class Place:
    """Location of a part of a tensor: source, chunk in the source, offsets of the first element."""

    source: int
    index: MetadataIndex
    offsets: tuple[int, ...]


Places = dict[tuple[str, torch.Size | None], Place]


def parameter_of(path: Sequence[Any], cuts: Mapping[str, Cut]) -> str | None:
    """Return the name of the cut parameter in the path of a checkpoint's key, or None."""
    names = (clean_name(one) for one in path if isinstance(one, str))
    return next((name for name in names if name in cuts), None)


def merge(sources: Sequence[tuple[Slice, Metadata]], wanted: Slice) -> tuple[Metadata, Places]:
    """Return metadata for the wanted slice as a checkpoint, and the places of its parts in the sources.

    Args:
        sources: all slices of one degree, ordered by number, with the metadata of their folders.

    Raises: ValueError if experts are separate modules, which each rank's optimizer names differently, or a tensor's
    shape does not match its parameter's slices.
    """
    known = {**wanted.cuts, **sources[0][0].cuts}
    if listed := [name for cuts in (wanted.cuts, sources[0][0].cuts) for name, cut in cuts.items() if not cut.parts]:
        raise ValueError(
            f"{listed[0]} belongs to experts that are separate modules: their sharded states can be "
            "loaded only with the same expert_parallel_degree; save FULL_STATE_DICT to change the degree"
        )
    merged: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    places: Places = {}
    for _, metadata in reversed(sources):
        paths.update(metadata.planner_data)
        merged.update(metadata.state_dict_metadata)
    for key, first in merged.items():
        name = parameter_of(paths[key], known)
        if isinstance(first, BytesStorageMetadata):
            places[key, None] = Place(0, MetadataIndex(key), ())
        elif name is None or len(first.size) <= known[name].dim:
            for at, chunk in enumerate(first.chunks):
                index = MetadataIndex(key, chunk.offsets, at)
                places[key, chunk.offsets] = Place(0, index, (0,) * len(chunk.offsets))
        else:
            merged[key] = _wanted(key, name, known[name], sources, wanted, places)
    return Metadata(merged, paths, None, sources[0][1].storage_meta), places


def _wanted(
    key: str, name: str, cut: Cut, sources: Sequence[tuple[Slice, Metadata]], wanted: Slice, places: Places
) -> TensorStorageMetadata:
    """Return the metadata of one tensor of the wanted slice, and add the places of its parts to `places`."""
    is_cut = name in sources[0][0].cuts and sources[0][0].of > 1
    to, chunks = wanted.runs(name, cut.length), []
    for at, (held, metadata) in enumerate(sources if is_cut else sources[:1]):
        tensor = metadata.state_dict_metadata[key]
        runs = held.runs(name, cut.length)
        length = sum(run for _, run, _ in runs)
        if not isinstance(tensor, TensorStorageMetadata) or tensor.size[cut.dim] != length:
            raise ValueError(
                f"{key} in slice {held.name} is not a tensor of length {length} along dimension {cut.dim}: it "
                "cannot be put into slices of another degree"
            )
        for number, chunk in enumerate(tensor.chunks):
            index = MetadataIndex(key, chunk.offsets, number)
            for begin, own, size in _common(runs, to, chunk.offsets[cut.dim], chunk.sizes[cut.dim]):
                offsets, sizes = list(chunk.offsets), list(chunk.sizes)
                inside = [0] * len(offsets)
                offsets[cut.dim], sizes[cut.dim], inside[cut.dim] = own, size, begin
                chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
                places[key, torch.Size(offsets)] = Place(at, index, tuple(inside))
    whole = list(sources[0][1].state_dict_metadata[key].size)
    whole[cut.dim] = sum(run for _, run, _ in to)
    return TensorStorageMetadata(sources[0][1].state_dict_metadata[key].properties, torch.Size(whole), chunks)


def _common(
    held: list[tuple[int, int, int]], wanted: list[tuple[int, int, int]], first: int, length: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the overlaps of a chunk with another slice: offset in the chunk, offset in the other slice, length."""
    for held_whole, held_length, held_own in held:
        low, high = max(first, held_own), min(first + length, held_own + held_length)
        to_whole = held_whole - held_own
        for whole, run, own in wanted:
            begin, end = max(low + to_whole, whole), min(high + to_whole, whole + run)
            if begin < end:
                yield begin - to_whole - first, own + begin - whole, end - begin
