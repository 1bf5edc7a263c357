"""Traces written by hand: events in milliseconds, on a rank's clock."""

import gzip
import json

from clary.contract.deep_profiles import RankProfile, RankState
from clary.control.traces.rank_trace import read_trace

BASE_NS = 1_700_000_000_000_000_000


def profile_of(rank=0, *, bounds=(0, 100), first_step=10, boot_id="machine", ahead_ms=0.0, **members):
    """Return a rank's report on its profiled window; the rank's clock is ahead by `ahead_ms`."""
    return RankProfile(
        rank=rank,
        state=RankState.DONE,
        pid=500,
        first_step=first_step,
        bounds_ns=tuple(BASE_NS + int((bound + ahead_ms) * 1e6) for bound in bounds),
        boot_id=boot_id,
        **members,
    )


def event(name, begin, end, *, category="cpu_op", thread=1, pid=500):
    """Return one event, its times in milliseconds."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": thread,
        "ts": begin * 1000,
        "dur": (end - begin) * 1000,
    }


def trace_of(events, *, ahead_ms=0.0, **members):
    """Return a trace in the form in which it is read from a file."""
    return read_trace(profile_of(ahead_ms=ahead_ms, **members), events, BASE_NS / 1000 + ahead_ms * 1000)


def packed(events, *, ahead_ms=0.0):
    """Return the bytes of a trace's file."""
    document = {
        "schemaVersion": 1,
        "traceEvents": events,
        "baseTimeNanoseconds": BASE_NS + int(ahead_ms * 1e6),
        "traceName": "t",
    }
    return gzip.compress(json.dumps(document).encode())
