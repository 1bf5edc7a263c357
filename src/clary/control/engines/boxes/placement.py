"""Decides which boxes hosts get: first come, first served, whole boxes, one host per box. Pure.

Where: `lease_book` calls it when hosts are requested or boxes may have become free, and stores the result; `scheduler`
reports to waiting jobs why they wait.

The hosts of a request are placed together, or the whole request waits. The boxes that a waiting request could use are
withheld from later requests, which may get all other boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from clary.base.string_enum import StrEnum
from clary.control.engines.boxes.records import GIB, RequestRecord
from clary.control.engines.cluster.scheduler import HostWish

_MOST_BOXES_TOLD = 6  # largest number of boxes in the reason for a wait


class BoxState(StrEnum):
    """State of a box."""

    READY = "ready"
    BUSY = "busy"  # has a lease, which may be ending
    DRAINED = "drained"  # gets no new lease
    SILENT = "silent"  # has not reported for a while
    UNKNOWN = "unknown"  # is new, and its driver has not reported its GPUs yet
    GONE = "gone"  # was removed; its processes are being ended


@dataclass(frozen=True, kw_only=True)
class BoxView:
    """State of a box, for placement."""

    name: str
    kind: str
    num_cpus: int
    memory_bytes: int
    num_gpus: int
    state: BoxState
    awaits_gpus: bool = False  # whether `num_gpus` is 0 only because the box has not reported its GPUs yet
    runs: str = ""  # job that uses the box

    @property
    def size(self) -> tuple[int, int, int]:
        """Sort key of boxes, the smallest first: GPUs are the most expensive, then memory."""
        return self.num_gpus, self.memory_bytes, self.num_cpus

    @property
    def words(self) -> str:
        """Return the reason why the box is not available."""
        match self.state:
            case BoxState.BUSY:
                return f"{self.name} runs {self.runs}" if self.runs else f"{self.name} is busy"
            case BoxState.GONE:
                return f"{self.name} is being removed"
            case BoxState.UNKNOWN:
                return f"{self.name} has not reported its GPUs yet"
            case _:
                return f"{self.name} is {self.state.value}"


@dataclass(frozen=True)
class Placement:
    """Boxes of the requests that can be placed, and the other requests' reasons to wait."""

    placed: Mapping[int, Mapping[int, str]]  # number of a request -> index of a host -> box
    waits: Mapping[int, str]  # number of a request -> reason of its wait


def place(requests: Iterable[RequestRecord], boxes: Sequence[BoxView]) -> Placement:
    """Place all requests that can be placed.

    A host of a kind that no box has any more, for example because a box has lost or found GPUs, gets a box by its
    resources.

    Args:
        requests: waiting requests in any order; the lowest number is the oldest.
        boxes: all boxes.
    """
    free = {box.name: box for box in boxes if box.state is BoxState.READY}
    placed: dict[int, dict[int, str]] = {}
    waits: dict[int, str] = {}
    kinds = {box.kind for box in boxes}
    for request in sorted(requests, key=lambda item: item.number):
        hosts = tuple(host if host.kind in kinds else replace(host, kind="") for host in request.hosts)
        found = _matching(hosts, sorted(free.values(), key=lambda box: (*box.size, box.name)))
        if found is not None:
            placed[request.number] = found
            for name in found.values():
                del free[name]
            continue
        waits[request.number] = why_waiting(hosts, boxes, free)
        for name in [name for name, box in free.items() if any(fits(host, box) for host in hosts)]:
            del free[name]
    return Placement(placed, waits)


def fits(host: HostWish, box: BoxView) -> bool:
    """Whether a box suffices for a host: by its kind if the host names one, else by its resources."""
    if host.kind:
        return host.kind == box.kind
    return (
        box.num_gpus >= host.num_gpus and box.num_cpus >= host.num_cpus and box.memory_bytes >= (host.memory_bytes or 0)
    )


def _may_fit(host: HostWish, box: BoxView) -> bool:
    """Whether a box suffices, or may do so once it has reported its GPUs."""
    if not box.awaits_gpus:
        return fits(host, box)
    return box.num_cpus >= host.num_cpus and box.memory_bytes >= (host.memory_bytes or 0)


def gives_way(
    requests: Iterable[RequestRecord], boxes: Sequence[BoxView], kept: Mapping[str, Sequence[str]]
) -> tuple[str, int] | None:
    """Return the first tag of `kept` with a box that a waiting request could get, and that request's number; else None.

    Args:
        requests: the waiting requests.
        boxes: all boxes.
        kept: tag -> boxes of a pool that no job uses; the pool that is unused longest is first.
    """
    tag_of = {box: tag for tag, names in kept.items() for box in names}
    freed = [
        replace(box, state=BoxState.READY) if box.state is BoxState.BUSY and box.name in tag_of else box
        for box in boxes
    ]
    for number, chosen in sorted(place(requests, freed).placed.items()):
        needed = {tag_of[box] for box in chosen.values() if box in tag_of}
        if needed:
            return next(tag for tag in kept if tag in needed), number
    return None


def why_waiting(hosts: Sequence[HostWish], boxes: Sequence[BoxView], free: Mapping[str, BoxView]) -> str:
    """Return the reason why hosts wait.

    Args:
        hosts: hosts of one request.
        boxes: all boxes.
        free: boxes that are available and kept for no other request.
    """
    usable = sorted((box for box in boxes if any(_may_fit(host, box) for host in hosts)), key=lambda box: box.name)
    noun = "box" if len(hosts) == 1 else "boxes"
    head = f"waits for {len(hosts)} {noun}"
    if len(usable) < len(hosts):
        there = f"{len(usable)} of {len(boxes)} would do" if boxes else "there is none"
        return f"{head} {_shape(hosts[0])}: {there}; add more with: clary hosts add USER@BOX"
    told = [
        f"{box.name} is kept for a job that came first" if box.state is BoxState.READY else box.words
        for box in usable
        if box.name not in free
    ]
    if not told:
        return f"{head} {_shape(hosts[0])}: what is free does not fit all hosts together"
    more = f" and {len(told) - _MOST_BOXES_TOLD} more" if len(told) > _MOST_BOXES_TOLD else ""
    return f"{head}: {', '.join(told[:_MOST_BOXES_TOLD])}{more}"


def _shape(host: HostWish) -> str:
    if host.kind:
        return f"of kind {host.kind}"
    parts = [f"{host.num_cpus} CPUs"]
    if host.memory_bytes:
        parts.append(f"{host.memory_bytes / GIB:.0f} GiB")
    if host.num_gpus:
        parts.append(f"{host.num_gpus} GPUs")
    return f"with {', '.join(parts)}"


def _matching(hosts: Sequence[HostWish], boxes: Sequence[BoxView]) -> dict[int, str] | None:
    """Give every host a box of its own, the smallest first; None if that is impossible.

    If all boxes that fit a host are assigned, another host moves to a different box that fits it (augmenting paths).
    """
    taken: dict[str, HostWish] = {}

    def settle(host: HostWish, seen: set[str]) -> bool:
        fitting = [box.name for box in boxes if fits(host, box)]
        for name in sorted(fitting, key=lambda name: name in taken):  # hosts move only if necessary
            if name in seen:
                continue
            seen.add(name)
            if name not in taken or settle(taken[name], seen):
                taken[name] = host
                return True
        return False

    if not all(settle(host, set()) for host in hosts):
        return None
    return {host.index: name for name, host in taken.items()}
