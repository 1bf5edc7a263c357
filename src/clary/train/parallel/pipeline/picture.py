"""Drawings of a pipeline run: as SVG for a browser, as text for a terminal.

Where: `record` provides real or simulated runs; the functions here are pure.

    Path("run.svg").write_text(svg(pipeline.gather_last_run()))
    print(text(simulated_run(schedule, simulate(schedule, seconds_of), seconds_of)))

Rows are ranks and time runs to the right. A box is an action: its colour shows the kind, its number the microbatch;
later stages of a rank are paler. The label of each row shows the rank's share of idle time.
"""

from __future__ import annotations

import math
from html import escape

from clary.train.parallel.pipeline.record import ActionRun, Run
from clary.train.parallel.pipeline.schedule import Kind

COLOURS = {Kind.FORWARD: "#4e79a7", Kind.BACKWARD: "#59a14f", Kind.INPUT: "#76b7b2", Kind.WEIGHT: "#edc948"}
LEGEND = {
    Kind.FORWARD: "F forward",
    Kind.BACKWARD: "B backward",
    Kind.INPUT: "I gradient of the input",
    Kind.WEIGHT: "W gradients of the weights",
}
# Lengths are in pixels.
_LEFT, _RIGHT, _TOP, _ROW, _BOX = 64, 88, 44, 30, 24
_FONT = 11
_DIGIT = 7  # width of a digit
_LEGEND_STEP = 190
_AXIS = 26  # height of ticks and their times below the rows
_TICKS = 10  # approximate number of ticks on the axis
_PALEST = 0.45  # opacity of a rank's last stage
_FILL = {Kind.FORWARD: "-", Kind.BACKWARD: "=", Kind.INPUT: "~", Kind.WEIGHT: "."}


def svg(run: Run, *, width: int = 1200) -> str:
    """Return a picture of a run as one SVG document.

    Args:
        width: width of the time axis, in pixels.
    """
    scale = width / run.length_s if run.length_s else 0.0
    bottom = _TOP + _ROW * len(run.ranks)
    has_chunks = any(len({one.action.stage for one in actions}) > 1 for actions in run.ranks)
    title = f"{run.name}: {_seconds(run.length_s)}{'; paler: later stages of a rank' if has_chunks else ''}"
    shapes = [_label(_LEFT, 16, title), *_legend(run), *_axis(run.length_s, scale, bottom)]
    for rank, (actions, idle) in enumerate(zip(run.ranks, run.idle, strict=True)):
        top = _TOP + _ROW * rank
        shapes.append(_label(4, top + _BOX - 8, f"rank {rank}"))
        shapes.append(f'<rect class="row" x="{_LEFT}" y="{top}" width="{width}" height="{_BOX}" fill="#f2f2f2"/>')
        stages = sorted({one.action.stage for one in actions})
        shapes += [_box(one, run, scale, top, stages) for one in actions]
        shapes.append(_label(_LEFT + width + 6, top + _BOX - 8, f"idle {idle:.1%}"))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + width + _RIGHT}" height="{bottom + _AXIS}" '
            f'font-family="sans-serif" font-size="{_FONT}">',
            '<rect width="100%" height="100%" fill="white"/>',
            *shapes,
            "</svg>\n",
        ]
    )


def text(run: Run, *, width: int = 120) -> str:
    """Return a picture of a run as lines of text: `F3---` is the forward of microbatch 3, spaces are idle.

    Args:
        width: width of the time axis, in characters; names of short actions are truncated.
    """
    scale = width / run.length_s if run.length_s else 0.0
    lines = [f"{run.name}: {_seconds(run.length_s)}"]
    for rank, (actions, idle) in enumerate(zip(run.ranks, run.idle, strict=True)):
        line = [" "] * width
        for one in actions:
            begin = min(round((one.begin_s - run.begin_s) * scale), width - 1)
            end = max(round((one.end_s - run.begin_s) * scale), begin + 1)
            name = f"{one.action.kind.value}{one.action.microbatch}".ljust(end - begin, _FILL[one.action.kind])
            line[begin:end] = name[: end - begin]
        lines.append(f"rank {rank:<3} |{''.join(line[:width])}| idle {idle:.1%}")
    return "\n".join(lines)


def _axis(length_s: float, scale: float, top: int) -> list[str]:
    """Return an SVG axis with ticks and labels at round times."""
    if not length_s:
        return []
    rough_s = length_s / _TICKS
    power = 10.0 ** math.floor(math.log10(rough_s))
    step_s = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough_s)
    shapes = []
    for number in range(int(length_s / step_s) + 1):
        left = _LEFT + number * step_s * scale
        shapes.append(f'<line x1="{left:.1f}" y1="{top}" x2="{left:.1f}" y2="{top + 4}" stroke="#888"/>')
        shapes.append(f'<text x="{left:.1f}" y="{top + 16}" text-anchor="middle">{_seconds(number * step_s)}</text>')
    return shapes


def _legend(run: Run) -> list[str]:
    kinds = {one.action.kind for actions in run.ranks for one in actions}
    shapes = []
    for number, kind in enumerate(kind for kind in Kind if kind in kinds):
        left = _LEFT + number * _LEGEND_STEP
        shapes.append(f'<rect class="legend" x="{left}" y="24" width="12" height="12" fill="{COLOURS[kind]}"/>')
        shapes.append(_label(left + 18, 34, LEGEND[kind]))
    return shapes


def _box(one: ActionRun, run: Run, scale: float, top: int, stages: list[int]) -> str:
    left = _LEFT + (one.begin_s - run.begin_s) * scale
    wide = (one.end_s - one.begin_s) * scale
    paleness = stages.index(one.action.stage) / (len(stages) - 1) if len(stages) > 1 else 0.0
    number = str(one.action.microbatch)
    inside = (
        f'<text x="{left + wide / 2:.2f}" y="{top + _BOX - 8}" text-anchor="middle">{number}</text>'
        if wide >= _DIGIT * len(number)
        else ""
    )
    told = f"{one.action.words}: {_seconds(one.begin_s - run.begin_s)} to {_seconds(one.end_s - run.begin_s)}"
    return (
        f'<g><title>{escape(told)}</title><rect class="action" x="{left:.2f}" y="{top}" width="{wide:.2f}" '
        f'height="{_BOX}" fill="{COLOURS[one.action.kind]}" fill-opacity="{1 - (1 - _PALEST) * paleness:.2f}" '
        f'stroke="white" stroke-width="0.5"/>{inside}</g>'
    )


def _label(left: float, baseline: float, words: str) -> str:
    return f'<text x="{left}" y="{baseline}">{escape(words)}</text>'


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
