"""Finds the newest step of which the hosts together have all parts, and reads it.

Every rank offers the parts that it can read: parts in its memory and, if it leads its folder, parts in the folder. A
save is whole if every part and the metadata are offered; the whole save with the highest order number (see `folders`)
is restored. A part in memory is preferred to the same part on a disk, and another rank sends the pieces that a rank
cannot read itself.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from clary.train.checkpoint.errors import CheckpointError
from clary.train.checkpoint.filling import Filling
from clary.train.checkpoint.folders import METADATA, order_of, scan
from clary.train.checkpoint.parts import Key, Part, PartIndex, StoredPart
from clary.train.checkpoint.places import Place
from clary.train.checkpoint.ranks import Ranks
from clary.train.checkpoint.reading import Request, fetch
from clary.train.checkpoint.snapshot import Memory, as_bytes


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A part that a rank can read."""

    save: str
    step: int
    part: int
    num_parts: int
    folder: str | None  # the folder's name below the root; None for a part in memory
    has_metadata: bool


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The save that is restored."""

    save: str
    step: int
    folders: Mapping[int, str]  # leader -> folder name
    leaders: Mapping[int, Sequence[int]]  # by part, the leaders of the folders that hold it
    teller: Mapping[int, int]  # by part, the rank that supplies its index
    holders: Mapping[int, Sequence[int]]  # by part, the ranks that can send it
    metadata_teller: int


def choose(offers: Sequence[Sequence[Offer]], places: Sequence[Place]) -> Choice | None:
    """Return the newest save whose parts and metadata are all offered, or None. Pure."""
    saves: dict[str, list[tuple[int, Offer]]] = {}
    for rank, own in enumerate(offers):
        for offer in own:
            saves.setdefault(offer.save, []).append((rank, offer))
    whole = [
        (order_of(save), found[0][1].step, save)
        for save, found in saves.items()
        if {offer.part for _, offer in found} >= set(range(found[0][1].num_parts))
        and any(offer.has_metadata for _, offer in found)
    ]
    if not whole:
        return None
    _, step, save = max(whole)
    found = saves[save]
    teller: dict[int, int] = {}
    holders: dict[int, list[int]] = {}
    leaders: dict[int, list[int]] = {}
    for part in range(found[0][1].num_parts):
        in_memory = [rank for rank, offer in found if offer.part == part and offer.folder is None]
        leaders[part] = [rank for rank, offer in found if offer.part == part and offer.folder is not None]
        beside = [rank for rank, place in enumerate(places) if place.leader in leaders[part]]
        teller[part], holders[part] = (in_memory or leaders[part])[0], in_memory or beside
    return Choice(
        save=save,
        step=step,
        folders={rank: offer.folder for rank, offer in found if offer.folder is not None},
        leaders=leaders,
        teller=teller,
        holders=holders,
        metadata_teller=next(rank for rank, offer in found if offer.has_metadata),
    )


def restore(
    ranks: Ranks,
    state: MutableMapping[str, Any],
    *,
    root: Path,
    places: Sequence[Place],
    memories: Sequence[Memory],
) -> tuple[PartIndex, Path | None] | None:
    """Fill a state with the newest whole step. Every rank calls it.

    State after failure: the state may be partly filled.

    Args:
        ranks: all ranks of the restore.
        state: models, optimizers and values by name; its values are replaced.
        root: folder of checkpoints as this rank sees it.
        places: host and leader of each rank, by rank.
        memories: this rank's own part and its copies of other ranks' parts.
    Returns: the index of a part of the step, and the step's folder if this rank sees one; None without a whole step.
    Raises: CheckpointError on all ranks if one rank failed; RuntimeError if a rank does not answer.
    """
    leader = places[ranks.rank].leader
    stored = ranks.together(f"looking for checkpoints in {root}", lambda: scan(root) if leader == ranks.rank else [])
    kept = [(memory.index, memory) for memory in memories if memory.index is not None]
    offers = [_offer(index, None, has_metadata=bool(memory.metadata)) for index, memory in kept]
    for step in stored:
        offers += [_offer(index, step.path.name, has_metadata=step.has_metadata) for index in step.parts.values()]
    choice = choose(ranks.all(offers), places)
    if choice is None:
        return None
    own = {index.rank: index for step in stored if step.save == choice.save for index in step.parts.values()}
    own |= {index.rank: index for index, _ in kept if index.save == choice.save}

    def tell() -> tuple[dict[int, bytes], bytes | None]:
        told = {part: own[part].to_json() for part, teller in choice.teller.items() if teller == ranks.rank}
        if choice.metadata_teller != ranks.rank:
            return told, None
        at_hand = [memory.metadata for index, memory in kept if index.save == choice.save and memory.metadata]
        return told, at_hand[0] if at_hand else (root / choice.folders[leader] / METADATA).read_bytes()

    def merge(told: list[tuple[dict[int, bytes], bytes | None]]) -> list[tuple[dict[int, bytes], bytes | None]]:
        indexes = {part: index for one, _ in told for part, index in one.items()}
        return [(indexes, next(metadata for _, metadata in told if metadata is not None))] * len(told)

    what = f"restoring step {choice.step} from {root}"
    told_indexes, metadata = ranks.map(what, tell, merge)
    indexes = {part: PartIndex.from_json(data, f"part {part}") for part, data in told_indexes.items()}
    folder = root / choice.folders[leader] if leader in choice.folders else None
    opened = []
    if folder is not None:
        opened = [StoredPart(folder, index) for part, index in indexes.items() if leader in choice.leaders[part]]
    here: dict[int, Part] = {one.index.rank: one for one in opened}
    here |= {index.rank: memory for index, memory in kept if index.save == choice.save}
    try:
        reader = _Reader(ranks, here, choice.holders, indexes, pickle.loads(metadata), what)  # noqa: S301 - as torch does
        filling = Filling(state, reader.metadata)
        values = reader.read(ranks.together(what, filling.values))
        tensors = reader.read(ranks.together(what, lambda: filling.tensors(values)))
        ranks.together(what, lambda: filling.finish(tensors))
    finally:
        for one in opened:
            one.close()
    return next(iter(indexes.values())), folder


def _offer(index: PartIndex, folder: str | None, *, has_metadata: bool) -> Offer:
    return Offer(
        save=index.save,
        step=index.step,
        part=index.rank,
        num_parts=index.num_parts,
        folder=folder,
        has_metadata=has_metadata,
    )


@dataclass
class _Reader:
    """Reads the tensors of a flat state; torch's planner maps the tensors to saved pieces."""

    ranks: Ranks
    here: Mapping[int, Part]
    holders: Mapping[int, Sequence[int]]
    indexes: Mapping[int, PartIndex]
    metadata: Metadata
    what: str

    def __post_init__(self) -> None:
        self._where: dict[Key, tuple[int, int, int]] = {
            key: (part, *place) for part, index in self.indexes.items() for key, place in index.places.items()
        }

    @torch.no_grad()
    def read(self, flat: dict[str, Any]) -> dict[str, Any]:
        """Fill the tensors of a flat state, replace its None values by the saved values, and return it."""
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)

        def plan() -> list[tuple[ReadItem, Request, torch.Size | None]]:
            planner.set_up_planner(flat, self.metadata, self.ranks.is_coordinator)
            return [(item, *self._request(item)) for item in planner.create_local_plan().items]

        planned = self.ranks.together(self.what, plan)

        def deliver(number: int, data: torch.Tensor) -> None:
            item, _, shape = planned[number]
            if item.type == LoadItemType.BYTE_IO:
                stream = io.BytesIO(as_bytes(data))
                flat[item.dest_index.fqn] = torch.load(stream, map_location="cpu", weights_only=False)
                return
            assert shape is not None
            dtype = self.metadata.state_dict_metadata[item.dest_index.fqn].properties.dtype
            aligned = data if data.storage_offset() % dtype.itemsize == 0 else data.clone()
            piece = aligned.view(dtype).view(shape)
            if shape != item.lengths:  # `data` is the whole saved piece, of which this rank needs a part
                for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                    piece = piece.narrow(dimension, start, length)
            planner.resolve_tensor(item).detach().copy_(piece)

        fetch(
            self.ranks,
            [request for _, request, _ in planned],
            here=self.here,
            holders=self.holders,
            deliver=deliver,
            what=self.what,
        )
        return flat

    def _request(self, item: ReadItem) -> tuple[Request, torch.Size | None]:
        """Return the bytes that an item needs and their shape; the shape is None for a value."""
        name, offset = item.storage_index.fqn, item.storage_index.offset
        key = (name, None if item.type == LoadItemType.BYTE_IO else tuple(offset))
        if key not in self._where:
            raise CheckpointError(f"no part holds {name} at {offset}, though the metadata names it")
        part, start, num_bytes = self._where[key]
        if item.type == LoadItemType.BYTE_IO:
            return Request(part, start, num_bytes), None
        saved = self.metadata.state_dict_metadata[name]
        chunk: ChunkStorageMetadata = next(one for one in saved.chunks if one.offsets == offset)
        if not chunk.sizes or chunk.sizes[1:] != item.lengths[1:]:
            return Request(part, start, num_bytes), chunk.sizes
        row_bytes = num_bytes // max(chunk.sizes[0], 1)
        return Request(part, start + item.storage_offsets[0] * row_bytes, item.lengths[0] * row_bytes), item.lengths
