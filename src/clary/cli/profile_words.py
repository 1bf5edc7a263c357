"""Texts of `clary profile` on how the time of a few steps was spent: ranks, collectives, operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from clary.cli.checkpoint_words import printable
from clary.cli.tables import clock_time, table

_NUM_TOP = 10
_NOBODY = "no rank has answered; only ranks that have imported torch 2.5 or newer do"
_WIDEST = 60  # characters of an operation's name


def profile_text(page: Mapping[str, Any], *, machine: str = "") -> str:
    """Return the text that `clary profile JOB` prints.

    Args:
        page: the service's answer.
        machine: name of a service elsewhere, on whose machine the files are; empty: this machine.
    """
    summary = page.get("summary") or {}
    ranks = [rank for rank in summary.get("ranks") or () if "compute_share" in rank]
    taken = clock_time(datetime.fromisoformat(page["asked_at"]))
    lines = [
        f"{page['job']}  attempt {page['attempt']}, profile {page['number']}, {taken}: {printable(page['reason'])}"
    ]
    if ranks:
        lines += ["", table(_HEADER, [_row(rank) for rank in ranks])]
        lines += _skew_lines(summary.get("skew") or {})
        lines += _top_lines(ranks)
    failed = [rank for rank in summary.get("ranks") or () if "compute_share" not in rank]
    if page.get("is_over") and not (ranks or failed or summary.get("errors")):
        lines += ["", f"nothing was recorded: {printable(page.get('ended') or _NOBODY)}"]
    if not page.get("is_over", True):
        lines += ["", f"it is being taken: {states_text(page.get('states') or ())}"]
    lines += [""] if failed or summary.get("errors") or (page.get("ended") and ranks) else []
    lines += [f"rank {rank['rank']} ({rank['host']}) has no trace: {printable(_why(rank))}" for rank in failed]
    lines += [f"note: rank {rank['rank']}: {printable(rank['words'])}" for rank in ranks if rank.get("words")]
    lines += [printable(error) for error in summary.get("errors") or ()]
    if page.get("ended") and len(ranks) < len(summary.get("ranks") or ()):
        lines.append(printable(page["ended"]))
    if ranks:
        there = f" (on the machine of service {machine})" if machine else ""
        lines += ["", f"clocks: {_clocks(summary.get('clocks') or {})}", f"traces: {page['folder']}{there}"]
        if summary.get("merged"):
            lines.append(f"all ranks on one axis, for ui.perfetto.dev: {page['folder']}/{summary['merged']}")
    return "\n".join(lines)


def states_text(states: Sequence[Mapping[str, Any]]) -> str:
    """Return `2 recording, 1 waiting (step 41)`, for progress."""
    counts: dict[str, int] = {}
    for state in states:
        counts[state["state"]] = counts.get(state["state"], 0) + 1
    step = max((state["step"] for state in states), default=0)
    words = ", ".join(f"{count} {state}" for state, count in counts.items()) or "asked for"
    return f"{words} (step {step})" if step else words


_HEADER = ("RANK", "HOST", "STEPS", "STEP", "COMPUTE", "COMMUNICATION", "EXPOSED", "DATA WAIT", "REST", "COLLECTIVES")


def _row(rank: Mapping[str, Any]) -> tuple[str, ...]:
    first, number = rank["first_step"], rank["num_steps"]
    step_ms = rank["step_ms"]
    return (
        str(rank["rank"]),
        rank["host"],
        f"{first}-{first + number - 1}" if number else f"{rank['window_ms'] / 1000:.1f} s",
        f"{step_ms:.1f} ms" if step_ms is not None else "-",
        _percent(rank["compute_share"]),
        _percent(rank["communication_share"]),
        _percent(rank["exposed_communication_share"]),
        _percent(rank["data_wait_share"]),
        _percent(rank["rest_share"]),
        str(rank["num_collectives"]),
    )


def _skew_lines(skew: Mapping[str, Any]) -> Iterable[str]:
    if not skew.get("num_collectives"):
        return
    last = sorted(skew["last"].items(), key=lambda pair: -pair[1])
    who, count = last[0]
    yield ""
    yield (
        f"{skew['num_collectives']} collectives of all ranks: from the first rank's arrival to the last one's "
        f"{skew['median_ms']:.1f} ms in the median, {skew['greatest_ms']:.1f} ms at most; "
        f"rank {who} comes last {count} times"
    )
    rows = [
        (str(row["step"]), _shortened(row["name"]), f"{row['skew_ms']:.1f} ms", f"rank {row['last']}")
        for row in skew["greatest"][:3]
    ]
    yield table(("STEP", "COLLECTIVE", "SKEW", "LAST"), rows)


def _top_lines(ranks: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Return lines on operations, summed over all ranks."""
    sums: dict[str, list[float]] = {}
    for rank in ranks:
        for item in rank["top"]:
            entry = sums.setdefault(item["name"], [0.0, 0])
            entry[0] += item["self_ms"]
            entry[1] += item["count"]
    ranked = sorted(sums.items(), key=lambda pair: -pair[1][0])[:_NUM_TOP]
    window_ms = sum(rank["window_ms"] for rank in ranks) or 1.0
    rows = [
        (_shortened(name), f"{took / len(ranks):.2f} ms", _percent(took / window_ms), str(int(count)))
        for name, (took, count) in ranked
    ]
    yield ""
    yield table(("OPERATION", "SELF A RANK", "SHARE", "CALLS"), rows)


def _why(rank: Mapping[str, Any]) -> str:
    return rank.get("words") or f"it is {rank['state']}"


def _clocks(clocks: Mapping[str, Any]) -> str:
    spread = clocks.get("spread_us")
    words = str(clocks.get("method", "not known"))
    return words if spread is None else f"{words}, within {spread / 1000:.2f} ms"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _shortened(name: str) -> str:
    name = printable(name)
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 3]}..."
