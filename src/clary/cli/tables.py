"""Columns, durations and JSON for terminals and pipes."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, TextIO

SECONDS_PER_MINUTE = 60
SECONDS_PER_HOUR = 3600
GAP = "  "  # between two columns
_NARROWEST = 12  # least width of a folded cell; narrower cells are harder to read than long lines


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None) -> str:
    """Return rows below a header, columns aligned to the left and two spaces apart.

    Args:
        header: titles of the columns.
        rows: cells of each row, as many as there are columns.
        width: columns of the screen; long cells are folded at spaces to fit it; None: no cell is folded.
    """
    everything = [list(header), *[[visible(cell) for cell in row] for row in rows]]
    widths = [max(len(row[index]) for row in everything) for index in range(len(header))]
    if width is not None:
        widths = _fitting(widths, width)
    lines = [
        GAP.join(part.ljust(cell_width) for part, cell_width in zip(parts, widths, strict=True))
        for row in everything
        for parts in zip_longest(*map(_folded, row, widths), fillvalue="")
    ]
    return "\n".join(line.rstrip() for line in lines)


def names_text(names: Sequence[str], *, is_json: bool) -> str:
    """Return names, one per line, or as a JSON list, with the newline at the end."""
    return json.dumps(names, indent=2) + "\n" if is_json else "".join(f"{name}\n" for name in names)


def screen_width(stream: TextIO) -> int | None:
    """Return the number of columns of a terminal, or None for pipes and files, whose lines are not folded."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def _fitting(widths: Sequence[int], width: int) -> list[int]:
    """Return the widths of columns on a screen: the widest shrinks until all fit or all are at their least width."""
    fitting = list(widths)
    room = width - len(GAP) * (len(fitting) - 1)
    while sum(fitting) > room:
        widest = max(reversed(range(len(fitting))), key=fitting.__getitem__)  # the last of equally wide columns
        if fitting[widest] <= _NARROWEST:
            break
        # Shrink at most to the width of the second widest: from there on, both shrink.
        second = max((one for index, one in enumerate(fitting) if index != widest), default=0)
        fitting[widest] -= max(1, min(sum(fitting) - room, fitting[widest] - max(second, _NARROWEST)))
    return fitting


def _folded(cell: str, width: int) -> list[str]:
    """Return the lines of a cell; words that are too long, such as paths, are broken."""
    if len(cell) <= width:
        return [cell]
    indent = cell[: len(cell) - len(cell.lstrip())]
    return textwrap.wrap(cell.lstrip(), width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def visible(text: str) -> str:
    """Return a text with its control characters spelled out: programs choose the names of metrics."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def duration(seconds: float) -> str:
    """Return `12.3 s`, `4m 05s` or `2h 03m`."""
    tenths = round(seconds, 1)
    if tenths < SECONDS_PER_MINUTE:
        return f"{tenths:.1f} s"
    whole = round(seconds)
    if whole < SECONDS_PER_HOUR:
        return f"{whole // SECONDS_PER_MINUTE}m {whole % SECONDS_PER_MINUTE:02d}s"
    return f"{whole // SECONDS_PER_HOUR}h {whole % SECONDS_PER_HOUR // SECONDS_PER_MINUTE:02d}m"


def clock_time(moment: datetime) -> str:
    """Return a local time of day with its date."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def json_text(document: Any) -> str:
    """Return a document as JSON with indents; null for numbers that are not finite, which JSON cannot express."""
    return json.dumps(json.loads(json.dumps(document), parse_constant=lambda _name: None), indent=2)
