"""Texts of `clary top`: rows of jobs and hosts from the service's pages, cut to the screen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clary.cli.checkpoint_words import count
from clary.cli.metric_words import Last, shown
from clary.cli.queue_words import waiting_brief
from clary.cli.tables import duration, table

HEADER = ("NAME", "STATUS", "PHASE", "AGE", "PROGRESS", "CPU", "MEMORY", "GPU", "LAST METRIC", "RESTARTS", "WAITS FOR")
HOST_INDENT = "  "
NOTHING = "-"
SAYS_NOTHING = ("", NOTHING, "0")
SAID_BY_STATUS = "PHASE"
WORD_LIMIT = 60  # characters of a reason in a row
CPU, MEMORY, GPU = "host/cpu_percent", "host/memory_bytes", "utilisation_percent"
SERIES = "host/cpu_percent,host/memory_bytes,gpu-*/utilisation_percent"


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One job; `hosts` are rows below it."""

    cells: tuple[str, ...]
    hosts: tuple[tuple[str, ...], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # the output of `--json`

    @property
    def name(self) -> str:
        """The job's name."""
        return self.cells[0]


def job_row(facts: Mapping[str, Any], series: Mapping[str, Any]) -> JobRow:
    """Return the row of a job.

    Args:
        facts: the service's answer about the job.
        series: the service's answer about the job's SERIES; an empty mapping if it was not read.
    """
    latest = latest_of(series)
    hosts = {host["name"]: latest.get(host["name"], {}) for host in facts["hosts"]}
    metrics = facts.get("metrics") or []
    newest = max(metrics, key=lambda item: item["at"], default=None)
    cells = (
        facts["name"],
        facts["state"],
        facts["secondary_status"],
        duration(series["age_s"]) if series else NOTHING,
        _progress(facts.get("progress")),
        *_load(list(hosts.values())),
        NOTHING if newest is None else f"{newest['name']}={_number(newest['value'])}",
        str(len(facts["past_attempts"])),
        _short(waiting_brief(facts)),
    )
    rows = tuple(
        (
            HOST_INDENT + host["name"],
            host["phase"],
            "",
            "",
            "",
            *_load([hosts[host["name"]]]),
            "",
            "",
            _short(host.get("standstill") or ""),
        )
        for host in facts["hosts"]
    )
    plain = {
        "name": facts["name"],
        "status": facts["status"],
        "state": facts["state"],
        "secondary_status": facts["secondary_status"],
        "age_s": series.get("age_s"),
        "progress": facts.get("progress"),
        "queue": facts["queue"],
        "pending_reason": facts["pending_reason"],
        "restarts": len(facts["past_attempts"]),
        "metrics": metrics,
        "hosts": [
            {"name": host["name"], "phase": host["phase"], "latest": hosts[host["name"]]} for host in facts["hosts"]
        ],
    }
    return JobRow(cells=cells, hosts=rows, facts=plain)


def count_words(num_shown: int, total: int) -> str:
    """Return `2 jobs`, or `50 of 208 jobs` if not all are shown."""
    return f"{num_shown} of {total} jobs" if total > num_shown else count(num_shown, "job")


def latest_of(series: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return host -> name of a series -> its last value."""
    found: dict[str, dict[str, float]] = {}
    for one in series.get("series", ()):
        values = [point[Last] for point in one["points"] if point[Last] is not None]
        if values:
            found.setdefault(one["host"], {})[one["name"]] = values[-1]
    return found


def screen(
    rows: Sequence[JobRow], *, opened: frozenset[str], chosen: str, width: int, height: int, head: str
) -> list[tuple[str, bool]]:
    """Return at most `height` lines of at most `width` columns, and whether each belongs to the chosen job.

    Args:
        rows: jobs in order.
        opened: names of jobs whose hosts are shown.
        chosen: name of the job that keys act on.
        width: columns.
        height: lines.
        head: first line.
    """
    lines = rows_with_hosts(rows, opened=opened)
    text = _fitting([cells for cells, _ in lines], width) if lines else ["no job runs or waits"]
    owners = [owner for _, owner in lines]
    room = max(1, height - 2)
    first = next((index for index, owner in enumerate(owners) if owner == chosen), 0)
    start = max(0, min(first - room // 2, len(owners) - room))
    seen = range(start, min(len(owners), start + room))
    shown_lines = [(head, False), (text[0], False), *((text[index + 1], owners[index] == chosen) for index in seen)]
    return [(line[:width], is_chosen) for line, is_chosen in shown_lines[:height]]


def _fitting(rows: Sequence[tuple[str, ...]], width: int) -> list[str]:
    """Return the lines of a table; if it is too wide, without empty columns, then without the phase."""
    columns = list(range(len(HEADER)))
    empty = {column for column in columns if all(row[column] in SAYS_NOTHING for row in rows)}
    for left_out in (set[int](), empty, empty | {HEADER.index(SAID_BY_STATUS)}):
        shown_columns = [column for column in columns if column not in left_out]
        cells = [[row[column] for column in shown_columns] for row in rows]
        lines = table([HEADER[column] for column in shown_columns], cells).split("\n")
        if max(map(len, lines)) <= width:
            break
    return lines


def rows_with_hosts(rows: Sequence[JobRow], *, opened: frozenset[str]) -> list[tuple[tuple[str, ...], str]]:
    """Return the cells of every line, with the name of its job."""
    return [(cells, row.name) for row in rows for cells in (row.cells, *(row.hosts if row.name in opened else ()))]


def moved(names: Sequence[str], chosen: str, by: int) -> str:
    """Return the job `by` lines below the chosen job, clamped at both ends of the list; empty text without jobs.

    Args:
        names: names of the jobs, as they are listed.
        chosen: name of the chosen job; if it is not listed, the first job is returned.
        by: lines to move down; negative moves up.
    """
    if not names:
        return ""
    if chosen not in names:
        return names[0]
    return names[min(len(names) - 1, max(0, names.index(chosen) + by))]


def _progress(progress: Mapping[str, Any] | None) -> str:
    if not progress:
        return NOTHING
    percent, eta_s = progress.get("percent"), progress.get("eta_s")
    share = f"{progress['done']:.0f} {progress['unit']}" if percent is None else f"{percent:.0f} %"
    return share if eta_s is None else f"{share}, {duration(eta_s)} left"


def _load(hosts: Sequence[Mapping[str, float]]) -> tuple[str, str, str]:
    """Return the total load of hosts: the sums of processor and memory, and the mean of all GPUs."""
    cpu = [host[CPU] for host in hosts if CPU in host]
    memory = [host[MEMORY] for host in hosts if MEMORY in host]
    gpus = [value for host in hosts for name, value in host.items() if name.endswith(GPU)]
    return (
        shown(sum(cpu), "%") if cpu else NOTHING,
        shown(sum(memory), "B") if memory else NOTHING,
        shown(sum(gpus) / len(gpus), "%") if gpus else NOTHING,
    )


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "nan"


def _short(text: str) -> str:
    first = " ".join(text.split())
    return (first if len(first) <= WORD_LIMIT else first[: WORD_LIMIT - 3] + "...") or NOTHING
