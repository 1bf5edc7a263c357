"""SVG pictures embedded in the page: lines over time, box plots, stacked bars, strips of ranks.

Colours are classes of the style sheet, so that pictures follow the light or dark theme. This module escapes all texts.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clary.control.profiling.quantiles import Box
from clary.control.profiling.report.style import NUM_COLOURS
from clary.control.series.queries import Point

WIDTH, HEIGHT = 330, 112
LEFT, RIGHT, TOP, BOTTOM = 34, 6, 6, 18
MOST_POINTS = 240  # points per line; a screen has no columns for more
STRIP_COLUMNS = 96
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_S_PER_MINUTE, _S_PER_HOUR = 60, 3600
_NICE = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart."""

    label: str
    points: Sequence[Point]


@dataclass(frozen=True, kw_only=True)
class Span:
    """The time that charts show, and the program's start and end; milliseconds since 1970."""

    start_ms: int
    end_ms: int
    marks_ms: Sequence[int] = ()

    def place(self, at_ms: float, width: float) -> float:
        """Return the horizontal position of a moment, from 0 to `width`."""
        return width * min(1.0, max(0.0, (at_ms - self.start_ms) / max(1, self.end_ms - self.start_ms)))


def text(value: object) -> str:
    """Escape a text for HTML, as content and in quoted attributes."""
    return html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(value)), quote=True)


def number(value: float) -> str:
    """Return a number with three significant digits, from 1000 on as a whole number; a hyphen if it is not finite."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def span_words(seconds: float) -> str:
    """Return a duration for people: 45 s, 12 min 3 s, 15 min, 3 h 4 min."""
    whole = round(max(0.0, seconds))
    if whole < _S_PER_MINUTE:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{whole} s"
    words = (
        (whole // _S_PER_HOUR, "h"),
        (whole % _S_PER_HOUR // _S_PER_MINUTE, "min"),
        (whole % _S_PER_MINUTE if whole < _S_PER_HOUR else 0, "s"),
    )
    return " ".join(f"{value} {unit}" for value, unit in words if value)


def chart(title: str, unit: str, lines: Sequence[Line], span: Span, *, most: float | None = None) -> str:
    """Return a figure: a line of means for each series, with a band from least to greatest for one or two series.

    Args:
        title: heading of the figure.
        unit: unit of the values.
        lines: series with labels; colours repeat after eight lines.
        span: the time that the figure shows.
        most: upper end of the scale; None: chosen to fit the values.
    Returns: HTML, empty if no series has points in the span.
    """
    drawn = [(line.label, thinned(line.points, span)) for line in lines]
    drawn = [(label, points) for label, points in drawn if points]
    if not drawn:
        return ""
    peak = max(point.greatest for _, points in drawn for point in points)
    top = most if most is not None else nice_top(peak)
    mean = sum(point.mean * point.count for _, points in drawn for point in points) / sum(
        point.count for _, points in drawn for point in points
    )
    shapes = [_frame(top, span)]
    for index, (_, points) in enumerate(drawn):
        shapes.append(_line(points, span, top, index % NUM_COLOURS, has_band=len(drawn) <= 2))
    summary = f"mean {number(mean)} {unit}, peak {number(peak)}"
    key = _key([label for label, _ in drawn]) if len(drawn) > 1 or drawn[0][0] else ""
    label = text(f"{title}: {summary}")
    return (
        f"<figure><figcaption><b>{text(title)}</b><span>{text(summary)}</span></figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(shapes)}</svg>{key}</figure>'
    )


def box_plot(box: Box, top: float) -> str:
    """Return a box plot for a table row: whiskers at the 5th and 95th percentile, dots at the extremes."""
    width, middle = 180.0, 9.0

    def at(value: float) -> str:
        return f"{4 + (width - 8) * min(1.0, max(0.0, value / top if top > 0 else 0.0)):.1f}"

    label = text(f"median {number(box.p50)}, middle half {number(box.p25)} to {number(box.p75)}")
    box_width = max(1.0, float(at(box.p75)) - float(at(box.p25)))
    return (
        f'<svg viewBox="0 0 {width:g} 18" style="width:180px" role="img" aria-label="{label}">'
        f'<line class="axis" x1="4" x2="{width - 4:g}" y1="{middle}" y2="{middle}"/>'
        f'<line class="l0" x1="{at(box.p5)}" x2="{at(box.p95)}" y1="{middle}" y2="{middle}"/>'
        f'<rect class="f0" fill-opacity=".35" x="{at(box.p25)}" y="3.5" width="{box_width:.1f}" height="11" rx="2"/>'
        f'<line class="l0" stroke-width="2" x1="{at(box.p50)}" x2="{at(box.p50)}" y1="2.5" y2="15.5"/>'
        f'<circle class="f0" cx="{at(box.least)}" cy="{middle}" r="1.5"/>'
        f'<circle class="f0" cx="{at(box.greatest)}" cy="{middle}" r="1.5"/></svg>'
    )


def stacked_bar(parts: Mapping[str, float], total: float, names: Sequence[str]) -> str:
    """Return a bar of parts of `total`; a part's index in `names` decides its colour."""
    width, pieces, passed = 600.0, [], 0.0
    for name, value in parts.items():
        wide = width * max(0.0, value) / total if total > 0 else 0.0
        colour = names.index(name) % NUM_COLOURS if name in names else NUM_COLOURS - 1
        title = text(f"{name}: {number(value)}")
        pieces.append(
            f'<rect class="f{colour}" x="{passed:.1f}" y="0" width="{wide:.1f}" height="16">'
            f"<title>{title}</title></rect>"
        )
        passed += wide
    return (
        f'<svg viewBox="0 0 {width:g} 16" preserveAspectRatio="none" style="height:16px" role="img" '
        f'aria-label="{text(", ".join(f"{name} {number(value)}" for name, value in parts.items()))}">'
        f'<rect class="rest" width="{width:g}" height="16" rx="3"/>{"".join(pieces)}</svg>'
    )


def strips(title: str, unit: str, lines: Sequence[Line], span: Span) -> str:
    """Return a figure with one strip for each rank; a darker column means a greater value.

    Args:
        title: heading of the figure; escaped here.
        unit: unit of the values, for the caption.
        lines: one for each rank; a line without points in the span is left out.
        span: time from the left to the right border.
    Returns: HTML, empty if no line has points.
    """
    rows = [(line.label, thinned(line.points, span, STRIP_COLUMNS)) for line in lines]
    rows = [(label, points) for label, points in rows if points]
    if not rows:
        return ""
    top = max(point.mean for _, points in rows for point in points) or 1.0
    left, high, width = 92, 13, 1000
    shapes = []
    column = (width - left) / STRIP_COLUMNS
    for row, (label, points) in enumerate(rows):
        y = row * (high + 2)
        shapes.append(f'<text x="{left - 8}" y="{y + 10}" text-anchor="end">{text(label)}</text>')
        shapes.append(f'<rect class="rest" x="{left}" y="{y}" width="{width - left}" height="{high}"/>')
        for point in points:
            x = left + min(STRIP_COLUMNS - 1, int(span.place(point.at_ms, STRIP_COLUMNS))) * column
            shade = max(0.0, point.mean) / top
            shapes.append(
                f'<rect class="f0" fill-opacity="{0.04 + 0.96 * shade:.2f}" x="{x:.1f}" y="{y}" '
                f'width="{column + 0.3:.1f}" height="{high}"/>'
            )
    caption = text(f"full colour is {number(top)} {unit}")
    return (
        f'<figure style="margin-top:18px"><figcaption><b>{text(title)}</b><span>{caption}</span></figcaption>'
        f'<svg viewBox="0 0 {width} {len(rows) * (high + 2)}" role="img" aria-label="{text(title)}">'
        f"{''.join(shapes)}</svg></figure>"
    )


def key_of(names: Sequence[str]) -> str:
    """Return the legend: the colour of each of `names`."""
    return _key(names)


def thinned(points: Sequence[Point], span: Span, most: int = MOST_POINTS) -> list[Point]:
    """Return at most `most` points of a span, merged by column of the picture; non-finite values are omitted."""
    columns: dict[int, Point] = {}
    for point in points:
        values = (point.least, point.greatest, point.mean)
        if not all(map(math.isfinite, values)) or not span.start_ms <= point.at_ms <= span.end_ms:
            continue
        column = min(most - 1, int(span.place(point.at_ms, most)))
        known = columns.get(column)
        columns[column] = point if known is None else known.merged(point)
    return [columns[column] for column in sorted(columns)]


def nice_top(peak: float) -> float:
    """Return a round number that is at least 99.9 % of a peak; 1 for a peak that is not above 0."""
    if not math.isfinite(peak) or peak <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(peak))
    return next((factor * power for factor in _NICE if factor * power >= peak * 0.999), peak)


def _frame(top: float, span: Span) -> str:
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    shapes = []
    for share in (0.0, 0.5, 1.0):
        y = TOP + inner_height * (1 - share)
        shapes.append(
            f'<line class="{"axis" if not share else "grid"}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        )
        shapes.append(f'<text x="{LEFT - 5}" y="{y + 3.5}" text-anchor="end">{number(top * share)}</text>')
    for at_ms in span.marks_ms:
        x = LEFT + span.place(at_ms, inner_width)
        shapes.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{TOP + inner_height}"/>')
    length_s = (span.end_ms - span.start_ms) / 1000
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        x = LEFT + inner_width * share
        words = span_words(length_s * share) if share else "0"
        shapes.append(f'<text x="{x:.1f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{text(words)}</text>')
    return "".join(shapes)


def _line(points: Sequence[Point], span: Span, top: float, colour: int, *, has_band: bool) -> str:
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(point: Point, value: float) -> str:
        y = TOP + inner_height * (1 - min(1.0, max(0.0, value / top)))
        return f"{LEFT + span.place(point.at_ms, inner_width):.1f} {y:.1f}"

    means = "L".join(at(point, point.mean) for point in points)
    if len(points) == 1:
        x, y = at(points[0], points[0].mean).split()
        return f'<circle class="f{colour}" cx="{x}" cy="{y}" r="2"/>'
    band = ""
    if has_band:
        upper = "L".join(at(point, point.greatest) for point in points)
        lower = "L".join(at(point, point.least) for point in reversed(points))
        band = f'<path class="band f{colour}" d="M{upper}L{lower}Z"/>'
    return f'{band}<path class="line l{colour}" d="M{means}"/>'


def _key(labels: Sequence[str]) -> str:
    return (
        "<div>"
        + "".join(
            f'<span class="key"><i class="b{index % NUM_COLOURS}"></i>{text(label)}</span>'
            for index, label in enumerate(labels)
        )
        + "</div>"
    )
