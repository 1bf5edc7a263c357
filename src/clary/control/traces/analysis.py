"""Summary and merged trace of a profile, from the files of its folder.

Traces are read one after the other; only summary values and the times of collectives (`Marks`) stay in memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clary.base.errors import ContractError
from clary.base.plain import from_plain
from clary.contract.deep_profiles import HostProfile, RankProfile, RankState
from clary.control.traces.across_ranks import Clocks, Marks, marks_of, set_clocks, skews
from clary.control.traces.merging import Source, write_merged
from clary.control.traces.rank_summary import US_PER_MS, summarize
from clary.control.traces.rank_trace import read_trace, shifted
from clary.control.traces.trace_file import TraceError, TraceFile

SUMMARY, MERGED = "summary.json", "merged.trace.json.gz"
_REQUEST = "request.json"
_TOO_LARGE = "its trace needs more memory than there is for it: ask for fewer steps"
_NO_SUCH_RANK = "the job has no such rank, or it has not imported torch 2.5 or newer"
_NO_KERNELS = "no kernel of its GPU was recorded: another tool may hold the GPU's own profiler (CUPTI)"


@dataclass(frozen=True)
class _Read:
    """A rank whose trace could be read."""

    file: TraceFile
    profile: RankProfile
    host: str
    marks: Marks


def analyse(folder: Path) -> dict[str, Any]:
    """Write summary and merged trace into a profile's folder; return the summary.

    Raises: OSError.
    """
    ranks: list[dict[str, Any]] = []
    read: list[_Read] = []
    windows: dict[int, tuple[dict[str, Any], float]] = {}  # rank -> its row, and the beginning of its window
    errors: list[str] = []
    for host, profile in _profiles(folder, errors):
        row: dict[str, Any] = {
            "rank": profile.rank,
            "host": host,
            "state": profile.state.value,
            "words": profile.words,
            "by_time": profile.by_time,
            "framework": profile.framework,
        }
        ranks.append(row)
        if profile.state is not RankState.DONE or len(profile.bounds_ns) < 2:
            continue
        place = folder / f"rank-{profile.rank}.trace.json.gz"
        file = TraceFile(place)
        try:
            trace = shifted(read_trace(profile, file.events()), file.base_us)
            row |= {"trace": place.name, **summarize(trace)}
            if profile.has_gpu and not row["on_accelerator"]:
                row["words"] = "; ".join(filter(None, (profile.words, _NO_KERNELS)))
            read.append(_Read(file, profile, host, marks_of(trace)))
            windows[profile.rank] = (row, trace.bounds[0])
        except (TraceError, ArithmeticError) as error:
            row |= {"state": RankState.FAILED.value, "words": str(error)}
        except MemoryError:
            row |= {"state": RankState.FAILED.value, "words": _TOO_LARGE}
    marks = [item.marks for item in read]
    clocks = set_clocks(marks)
    _place_windows(windows, clocks)
    summary: dict[str, Any] = {
        "ranks": ranks,
        "errors": errors,
        "clocks": {"method": clocks.method, "spread_us": clocks.spread_us},
        "skew": skews(marks, clocks),
        "merged": "",
    }
    if read:
        sources = [Source(item.file, item.profile, item.host, clocks.offsets[item.profile.rank]) for item in read]
        try:
            write_merged(folder / MERGED, sources, facts={"clocks": {**asdict(clocks), "offsets": None}})
            summary["merged"] = MERGED
        except (TraceError, MemoryError) as error:
            errors.append(f"the traces could not be merged: {str(error) or _TOO_LARGE}")
    draft = folder / f".{SUMMARY}.part"
    draft.write_text(json.dumps(summary), encoding="utf-8")
    draft.replace(folder / SUMMARY)
    return summary


def _place_windows(windows: Mapping[int, tuple[dict[str, Any], float]], clocks: Clocks) -> None:
    """Add to each row the time from the beginning of the first window to the beginning of its rank's window."""
    begins = {rank: begin + clocks.offsets[rank] for rank, (_, begin) in windows.items()}
    for rank, (row, _) in windows.items():
        row["begins_ms"] = (begins[rank] - min(begins.values())) / US_PER_MS


def _profiles(folder: Path, errors: list[str]) -> list[tuple[str, RankProfile]]:
    """Return the ranks' reports, sorted by rank.

    Adds an error for each host without an answer or with an error; if there is none, for each requested rank without a
    report.
    """
    request = _document(folder / _REQUEST)
    found: dict[int, tuple[str, RankProfile]] = {}
    for host in request.get("hosts") or ():
        try:
            answer = from_plain(HostProfile, _document(folder / f"{host}.json"))
        except ContractError:
            errors.append(f"{host} has not answered")
            continue
        if answer.error:
            errors.append(answer.error)
        for profile in answer.ranks:
            found[profile.rank] = (host, profile)
    if not errors:  # the ranks of a host without an answer are unknown
        asked = (request.get("asked") or {}).get("ranks") or ()
        errors += [f"rank {rank} has not answered: {_NO_SUCH_RANK}" for rank in asked if rank not in found]
    return [found[rank] for rank in sorted(found)]


def _document(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
