"""How the command line shows a training: its progress in a line, its metrics in a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clary.cli.tables import duration, table

UNKNOWN = "-"


def progress_text(progress: Mapping[str, Any]) -> str:
    """Return `45 % (450 of 1000 steps, epoch 2 of 3), 1m 12s left`."""
    words = []
    if progress["total"] and progress["unit"] != "percent":
        words.append(f"{progress['done']:.0f} of {progress['total']:.0f} {progress['unit']}")
    if progress.get("max_epoch") and progress["unit"] == "steps":
        words.append(f"epoch {progress['epoch']} of {progress['max_epoch']}")
    share = f"{progress['done']:.0f} {progress['unit']}"
    if progress["percent"] is not None:
        share = f"{progress['percent']:.0f} %"
    text = f"{share} ({', '.join(words)})" if words else share
    return text if progress["eta_s"] is None else f"{text}, {duration(progress['eta_s'])} left"


def training_text(page: Mapping[str, Any]) -> str:
    """Return the table of a page of training metrics."""
    head = f"{page['job']}  {page['status']}"
    if page["progress"]:
        head += f", {progress_text(page['progress'])}"
    if not page["metrics"]:
        return f"{head}\nthe program has said nothing of its training"
    rows = [
        (
            one["name"],
            number_text(one["last"]),
            UNKNOWN if one["step"] is None else str(one["step"]),
            number_text(one["least"]),
            number_text(one["greatest"]),
            str(one["num_values"]),
        )
        for one in page["metrics"]
    ]
    return f"{head}\n\n{table(('METRIC', 'LAST', 'STEP', 'MIN', 'MAX', 'VALUES'), rows)}"


def number_text(number: float | None) -> str:
    """Return about five digits; `nan` for what is no number."""
    return "nan" if number is None else f"{number:.5g}"
