"""Decision on which tensors are ready: the same on all ranks, since all have the same input.

Every rank announces a new tensor with its description. Once a tensor with a name has run, it is *known*: in later
rounds one bit announces it, until it is evicted. This module neither waits nor sends, and touches no tensor memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clary.train.horovod.ballots import News
from clary.train.horovod.requests import Description, Verb

_MAY_JOIN = (Verb.ALLREDUCE, Verb.BARRIER)  # verbs that are allowed while some ranks have joined


@dataclass(frozen=True)
class Ready:
    """A tensor that all ranks run next.

    Args:
        refusal: reason why the tensor cannot run; "" if it can. Equal on all ranks.
    """

    name: str
    description: Description
    refusal: str = ""


@dataclass(frozen=True)
class Verdict:
    """The decision of one round.

    Args:
        ready: tensors in the order in which all ranks run them.
        last_joined: rank that joined last, once all have; else None.
        overdue: for each tensor that some rank has waited for too long, the ranks that have not submitted it.
    """

    ready: tuple[Ready, ...] = ()
    last_joined: int | None = None
    overdue: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class _Known:
    index: int
    description: Description


class Readiness:
    """Known and announced tensors of a process set; equal on all ranks, since all ranks pass the same news.

    Args:
        size: number of ranks.
        capacity: maximum number of known tensors; tensors beyond it are evicted in LRU order; 0 keeps none.
    """

    def __init__(self, size: int, capacity: int) -> None:
        self._size = size
        self._capacity = capacity
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._names: dict[int, str] = {}
        self._free: list[int] = []
        self._announced: dict[str, dict[int, tuple[bool, Description]]] = {}
        self._joined: list[int] = []

    @property
    def num_indices(self) -> int:
        """Number of bits of a mask, including free indices."""
        return len(self._names) + len(self._free)

    def index_of(self, name: str, description: Description) -> int | None:
        """Return the bit of a known tensor; None if this description has to be announced."""
        known = self._known.get(name)
        return None if known is None or known.description != description else known.index

    def decide(self, news: Sequence[News], ready_mask: int) -> Verdict:
        """Decide from the news of all ranks, and the bits of known tensors that all ranks have submitted.

        Args:
            news: each rank's news, ordered by rank; empty if no rank has news.
            ready_mask: AND of all ranks' masks, with the indices that are valid before this call.
        """
        candidates = [name for index, name in sorted(self._names.items()) if ready_mask >> index & 1]
        ready = [Ready(name, self._known[name].description, self._refuse_joined(name)) for name in candidates]
        for rank, told in enumerate(news):
            self._take(rank, told)
        ready = [one for one in ready if one.name in self._known]
        ready += self._complete()
        ready = self._whole_groups(ready)
        for one in ready:
            self._settle(one)
        return Verdict(tuple(ready), self._all_joined(), self._missing(news))

    def _take(self, rank: int, told: News) -> None:
        if told.has_joined and rank not in self._joined:
            self._joined.append(rank)
        for name, is_nameless, description in told.announced:
            self._forget(name)
            self._announced.setdefault(name, {})[rank] = (is_nameless, description)

    def _complete(self) -> list[Ready]:
        """Return announced tensors that all ranks, apart from joined ranks, have submitted."""
        found = []
        for name, by_rank in self._announced.items():
            if len(by_rank) + sum(rank not in by_rank for rank in self._joined) == self._size:
                description = next(iter(by_rank.values()))[1]
                found.append(Ready(name, description, _mismatch(by_rank) or self._refuse_joined(name)))
        return found

    def _refuse_joined(self, name: str) -> str:
        known = self._known.get(name)
        description = known.description if known else next(iter(self._announced[name].values()))[1]
        if not self._joined or description.verb in _MAY_JOIN:
            return ""
        return f"{description.verb.name.lower()} is not supported with join: ranks {self._joined} have joined"

    def _whole_groups(self, ready: list[Ready]) -> list[Ready]:
        """Drop the tensors of each group that has a tensor which is not ready."""
        counts: dict[str, int] = {}
        refusals: dict[str, str] = {}
        for one in ready:
            if one.description.group:
                counts[one.description.group] = counts.get(one.description.group, 0) + 1
                if one.refusal:
                    refusals.setdefault(one.description.group, one.refusal)
        kept = [one for one in ready if counts.get(one.description.group, 0) == one.description.group_size]
        return [
            Ready(one.name, one.description, one.refusal or refusals.get(one.description.group, "")) for one in kept
        ]

    def _settle(self, one: Ready) -> None:
        """Add a tensor that runs to the known tensors, or forget a refused tensor."""
        by_rank = self._announced.pop(one.name, {})
        is_nameless = any(told[0] for told in by_rank.values())
        if one.refusal:
            self._forget(one.name)
        elif one.name in self._known:
            self._known.move_to_end(one.name)
        elif self._capacity and not is_nameless and one.description.verb < Verb.BARRIER:
            if len(self._known) >= self._capacity:
                self._forget(next(iter(self._known)))
            index = self._free.pop() if self._free else len(self._names)
            self._known[one.name] = _Known(index, one.description)
            self._names[index] = one.name

    def _forget(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known is not None:
            del self._names[known.index]
            self._free.append(known.index)

    def _all_joined(self) -> int | None:
        if len(self._joined) < self._size:
            return None
        last = self._joined[-1]
        self._joined = []
        return last

    def _missing(self, news: Sequence[News]) -> dict[str, tuple[int, ...]]:
        """Return, for each tensor that some rank has waited for too long, the ranks that have not submitted it."""
        waiting: dict[str, set[int]] = {}
        for rank, told in enumerate(news):
            for name in told.overdue:
                waiting.setdefault(name, set()).add(rank)
        found = {}
        for name, ranks in waiting.items():
            there = ranks | set(self._announced.get(name, {})) | set(self._joined)
            found[name] = tuple(rank for rank in range(self._size) if rank not in there)
        return found


def _mismatch(by_rank: Mapping[int, tuple[bool, Description]]) -> str:
    """Return a text on the first difference between two ranks' descriptions; "" if all are equal."""
    (first_rank, (_, first)), *others = by_rank.items()
    for rank, (_, other) in others:
        if other == first:
            continue
        for what in ("verb", "dtype", "shape", "reduction", "root", "place", "group", "group_size", "details"):
            mine, theirs = getattr(first, what), getattr(other, what)
            if mine != theirs:
                return (
                    f"mismatched {_WORDS.get(what, what)}: rank {first_rank} submitted {_shown(mine)}, "
                    f"rank {rank} submitted {_shown(theirs)}; submit the same on all ranks"
                )
    return ""


_WORDS = {"verb": "operation", "dtype": "data type", "place": "device", "root": "root rank"}


def _shown(value: object) -> str:
    name = getattr(value, "name", None)
    return name.lower() if isinstance(name, str) else str(value)
