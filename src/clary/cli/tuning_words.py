"""Texts of `clary tuning`: the list, and a tuning job with its best trial, importance and trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from clary.cli.tables import duration, table, visible

IN_PROGRESS = ("InProgress", "Stopping")
BAR_WIDTH = 20
NO_VALUE = "-"
_COUNTED = (
    ("Completed", "completed"),
    ("InProgress", "in progress"),
    ("Stopped", "stopped"),
    ("NonRetryableError", "failed"),
    ("RetryableError", "failed by the service"),
)


def list_text(rows: Sequence[Mapping[str, Any]], *, now: datetime, width: int | None = None) -> str:
    """Return the table of tuning jobs.

    Args:
        rows: as the service lists them.
        now: present time, for the durations of jobs that have not ended.
        width: columns of the screen; None: no cell is folded.
    """
    if not rows:
        return "no tuning jobs yet"
    cells = [
        (
            row["name"],
            row["status"],
            row["strategy"],
            _num_trials(row),
            row["objective"]["metric"],
            NO_VALUE if row["best"] is None else _number(row["best"]["value"]),
            f"{duration((now - _time(row['created_at'])).total_seconds())} ago",
            duration(_took_s(row, now)),
        )
        for row in rows
    ]
    return table(("NAME", "STATUS", "STRATEGY", "TRIALS", "OBJECTIVE", "BEST", "CREATED", "TOOK"), cells, width=width)


def tuning_text(page: Mapping[str, Any], *, now: datetime, width: int | None = None) -> str:
    """Return the text that `clary tuning NAME` prints.

    Args:
        page: the service's page of the tuning job.
        now: present time, for a tuning job that has not ended.
        width: columns of the screen; None: no cell is folded.
    """
    return "\n".join(
        [*head_lines(page, now=now), *_importance_lines(page), "", trials_text(page, now=now, width=width)]
    )


def head_lines(page: Mapping[str, Any], *, now: datetime) -> list[str]:
    """Return lines on status, objective, best trial, counters, and the conditions that end the tuning job.

    Args:
        page: the service's page of the tuning job.
        now: present time, for a tuning job that has not ended.
    """
    objective, best = page["objective"], page["best"]
    counters = ", ".join(f"{page['counters'][key]} {words}" for key, words in _COUNTED if page["counters"].get(key))
    goal = "maximize" if objective["is_maximized"] else "minimize"
    facts = [
        ("objective", f"{goal} {visible(objective['metric'])}"),
        ("strategy", f"{page['strategy']}, seed {page['seed']}"),
        ("trials", f"{_num_trials(page)}" + (f": {counters}" if counters else "")),
        ("time", duration(_took_s(page, now))),
    ]
    if best is not None:
        facts.append(("best", f"{_number(best['value'])} by trial {best['number']}, {best['job']}"))
        facts.append(("with", _pairs(best["parameters"])))
    if page["parents"]:
        facts.append(("begins with", f"trials of {', '.join(page['parents'])}"))
    if page["status"] == "InProgress":
        facts.append(("ends", "; ".join(page["ends"])))
    elif page["end_reason"]:
        facts.append(("ended", visible(page["end_reason"])))
    return [f"{page['name']}  {page['status']}", *[f"  {label:<11} {text}" for label, text in facts]]


def trials_text(page: Mapping[str, Any], *, now: datetime, width: int | None = None) -> str:
    """Return the table of trials, in the order of their numbers.

    Args:
        page: the service's page of the tuning job.
        now: present time, for running trials.
        width: columns of the screen; None: no cell is folded.
    """
    if not page["trials"]:
        return "no trial has started yet"
    names = list(dict.fromkeys(one["name"] for part in page["definitions"] for one in part["ranges"]))
    has_definitions = len(page["definitions"]) > 1
    best = None if page["best"] is None else page["best"]["number"]
    rows = []
    for trial in page["trials"]:
        why = _why(trial)
        rows.append(
            (
                f"{trial['number']}{'*' if trial['number'] == best else ''}",
                trial["job"],
                *([trial["definition"]] if has_definitions else []),
                trial["state"],
                _value(trial),
                *(_parameter(trial["parameters"].get(name)) for name in names),
                _trial_took(trial, now),
                why.splitlines()[0] if why else "",
            )
        )
    metric = visible(page["objective"]["metric"]).upper()
    header = ["#", "JOB", *(["DEFINITION"] if has_definitions else []), "STATE", metric]
    header += [*(visible(name).upper() for name in names), "TOOK", "WHY"]
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return table(header, rows, width=width)


def trial_line(trial: Mapping[str, Any], metric: str) -> str:
    """Return a line on how a trial ended.

    Args:
        trial: a trial on the service's page.
        metric: name of the trial's objective.
    """
    value = "no objective" if trial["value"] is None else f"{metric}={_number(trial['value'])}"
    why = _why(trial)
    text = f"trial {trial['number']} is {trial['status']}: {value} with {_pairs(trial['parameters'])}"
    return visible(f"{text}; {why.splitlines()[0]}" if why else text)


def _why(trial: Mapping[str, Any]) -> str:
    """Return the trial from which a trial continued, if there is one, and why the trial ended early."""
    begun = f"goes on from trial {trial['continues']}" if trial.get("continues") else ""
    return "; ".join(filter(None, (begun, trial["stop_reason"] or trial["failure_reason"])))


def _importance_lines(page: Mapping[str, Any]) -> list[str]:
    if page["importance"] is None:
        return ["", f"importance: {visible(page['importance_why'])}"]
    widest = max(len(visible(name)) for name in page["importance"])
    return [
        "",
        "importance",
        *[
            f"  {visible(name):<{widest}}  {share * 100:3.0f} %  {'#' * round(share * BAR_WIDTH)}".rstrip()
            for name, share in page["importance"].items()
        ],
    ]


def _num_trials(row: Mapping[str, Any]) -> str:
    return str(row["num_trials"]) if row["max_trials"] is None else f"{row['num_trials']} of {row['max_trials']}"


def _value(trial: Mapping[str, Any]) -> str:
    if trial["value"] is not None:
        return _number(trial["value"])
    return f"({_number(trial['curve'][-1])})" if trial["curve"] and trial["ended_at"] is None else NO_VALUE


def _parameter(text: str | None) -> str:
    """Return a hyperparameter's value, shortened if it is a number with many digits."""
    if text is None:
        return NO_VALUE
    try:
        return _number(float(text))
    except ValueError:
        return text


def _pairs(parameters: Mapping[str, str]) -> str:
    return visible(", ".join(f"{name}={_parameter(value)}" for name, value in parameters.items()))


def _trial_took(trial: Mapping[str, Any], now: datetime) -> str:
    if trial["started_at"] is None:
        return NO_VALUE
    end = now if trial["ended_at"] is None else _time(trial["ended_at"])
    return duration(max(0.0, (end - _time(trial["started_at"])).total_seconds()))


def _took_s(row: Mapping[str, Any], now: datetime) -> float:
    end = now if row["ended_at"] is None else _time(row["ended_at"])
    return max(0.0, (end - _time(row["created_at"])).total_seconds())


def _number(value: float) -> str:
    return f"{value:.5g}"


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
