"""Texts of the command line on a training: its progress in a line, its metrics in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clary.cli.tables import duration, table

UNKNOWN = "-"
MAX_TAGS = 20  # tags of histograms and images that are shown


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
    pictures = page.get("pictures", [])
    if not page["metrics"] and not pictures:
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
    parts = [head]
    if rows:
        parts.append(table(("METRIC", "LAST", "STEP", "MIN", "MAX", "VALUES"), rows))
    if pictures:
        parts.append(_pictures_text(pictures))
    return "\n\n".join(parts)


def _pictures_text(pictures: Sequence[Mapping[str, Any]]) -> str:
    """Return lines on the tags of histograms and images, and on the page that shows them."""
    rows = [
        (
            one["tag"],
            one["kind"],
            UNKNOWN if one["last_step"] is None else str(one["last_step"]),
            str(one["num_seen"]),
            str(one["num_values"]),
        )
        for one in pictures[:MAX_TAGS]
    ]
    text = table(("PICTURE", "KIND", "STEP", "WRITTEN", "KEPT"), rows)
    if len(pictures) > MAX_TAGS:
        text += f"\nand {len(pictures) - MAX_TAGS} more (--json has all)"
    return f"{text}\nthey are shown by the job's page of `clary console`, under Charts"


def number_text(number: float | None) -> str:
    """Return a number with about five digits, or `nan` for a value that is not a number."""
    return "nan" if number is None else f"{number:.5g}"
