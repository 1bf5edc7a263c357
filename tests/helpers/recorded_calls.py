"""Records of invented collective calls."""

from __future__ import annotations

from datetime import UTC, datetime

from clary.base.rank_lists import rank_text
from clary.contract.stack_dumps import CollectiveCall, CollectiveGroup, HostDump
from clary.control.analysis.last_collectives import count_collectives

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def call(number, operation="all_reduce", state="finished", count=4, dtype="float32", age_s=12.0):
    return CollectiveCall(number=number, operation=operation, count=count, dtype=dtype, state=state, age_s=age_s)


def waits(number, operation="all_reduce", **facts):
    return call(number, operation, state="waited for", **facts)


def group(*calls, name="0", kind="gloo", ranks=range(4), **facts):
    ranks = tuple(ranks)
    size = facts.pop("size", len(ranks))
    newest_first = tuple(sorted(calls, key=lambda one: -one.number))
    return CollectiveGroup(name=name, kind=kind, size=size, ranks=rank_text(ranks), calls=newest_first, **facts)


def dumps_of(*processes, left=()):
    dump = HostDump(
        number=1, reason="", host="algo-1", taken_at=NOW, addresses=(), processes=processes, left=tuple(left)
    )
    return {"algo-1": dump}


def count(*processes, num_ranks=4, left=()):
    return count_collectives(dumps_of(*processes, left=left), num_ranks=num_ranks)
