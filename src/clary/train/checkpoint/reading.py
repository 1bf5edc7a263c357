"""Reads bytes of parts from this rank's memory, from its folder, or from another rank that sends them.

[Note: turns] In turn k every rank sends to the rank k places after it and receives from the rank k places before it,
batch by batch and simultaneously; so both ends are always in the same turn, and ranks cannot wait in a circle. A rank
that cannot read sends undefined bytes, and all ranks raise the error after the last turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from clary.train.checkpoint.parts import Part
from clary.train.checkpoint.ranks import Ranks
from clary.train.checkpoint.snapshot import as_bytes

BATCH_BYTES = 32 * 1024**2  # largest batch between two ranks; a longer piece is a batch of its own


@dataclass(frozen=True)
class Request:
    """Bytes of a part that this rank requests."""

    part: int  # the rank that wrote the part
    start: int
    num_bytes: int


Deliver = Callable[[int, torch.Tensor], None]  # takes a request's index, and its bytes, valid during the call


def fetch(
    ranks: Ranks,
    requests: Sequence[Request],
    *,
    here: Mapping[int, Part],
    holders: Mapping[int, Sequence[int]],
    deliver: Deliver,
    what: str,
) -> None:
    """Read the pieces that this rank requests, and send other ranks theirs. Every rank calls it.

    Args:
        ranks: ranks of a group, numbered as in the default group.
        requests: this rank's requests; they may differ between ranks.
        here: rank that wrote a part -> the part, for parts that this rank can read itself.
        holders: by part, the ranks that can send it; the same on all ranks.
        deliver: takes the index of a request and its bytes, which are valid during the call.
        what: description of the operation, for the error.

    Raises: CheckpointError on all ranks if one rank failed to read or deliver; RuntimeError if a rank does not answer.
    """
    troubles: list[Exception] = []

    def guarded(action: Callable[[], None]) -> None:
        try:
            if not troubles:
                action()
        except Exception as error:  # noqa: BLE001 - told to all ranks at the end; until then they need this one
            troubles.append(error)

    wanted: dict[int, list[int]] = {}  # holder -> indices of requests
    for number, request in enumerate(requests):
        if request.part in here:
            guarded(partial(_deliver_own, here, request, number, deliver))
        else:
            choice = holders[request.part]
            wanted.setdefault(choice[ranks.rank % len(choice)], []).append(number)
    asked = ranks.all({holder: [requests[number] for number in numbers] for holder, numbers in wanted.items()})
    for distance in range(1, ranks.size):
        to, source = (ranks.rank + distance) % ranks.size, (ranks.rank - distance) % ranks.size
        sending = _batches(asked[to].get(ranks.rank, []))
        numbers = iter(wanted.get(source, []))
        receiving = _batches([requests[number] for number in wanted.get(source, [])])
        for turn in range(max(len(sending), len(receiving))):
            works: list[Any] = []
            outgoing = incoming = torch.empty(0, dtype=torch.uint8)
            if turn < len(sending):
                outgoing = torch.empty(_size(sending[turn]), dtype=torch.uint8)
                guarded(partial(_read_batch, here, sending[turn], outgoing))
                works.append(dist.isend(outgoing, group=ranks.group, dst=to))
            if turn < len(receiving):
                incoming = torch.empty(_size(receiving[turn]), dtype=torch.uint8)
                works.append(dist.irecv(incoming, group=ranks.group, src=source))
            for work in works:
                work.wait()
            at = 0
            for request in receiving[turn] if turn < len(receiving) else []:
                number, piece = next(numbers), incoming[at : at + request.num_bytes]
                guarded(partial(deliver, number, piece))
                at += request.num_bytes

    def outcome() -> None:
        if troubles:
            raise troubles[0]

    ranks.map(what, outcome, lambda told: told)


def _deliver_own(here: Mapping[int, Part], request: Request, number: int, deliver: Deliver) -> None:
    buffer = torch.empty(request.num_bytes, dtype=torch.uint8)
    here[request.part].read_into(request.start, as_bytes(buffer))
    deliver(number, buffer)


def _read_batch(here: Mapping[int, Part], batch: Sequence[Request], buffer: torch.Tensor) -> None:
    at, room = 0, as_bytes(buffer)
    for request in batch:
        here[request.part].read_into(request.start, room[at : at + request.num_bytes])
        at += request.num_bytes


def _batches(requests: Sequence[Request]) -> list[list[Request]]:
    batches: list[list[Request]] = []
    for request in requests:
        if not batches or _size(batches[-1]) + request.num_bytes > BATCH_BYTES:
            batches.append([])
        batches[-1].append(request)
    return batches


def _size(batch: Sequence[Request]) -> int:
    return sum(request.num_bytes for request in batch)
