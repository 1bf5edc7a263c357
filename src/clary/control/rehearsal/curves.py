"""The losses of twin and rehearsal as curves, for readers of a certificate. Pure.

Where: `clary rehearse` writes them into the certificate's document; the verdict does not use them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from clary.control.rehearsal.certificate import Run
from clary.control.rehearsal.history import Scale, relevant, scale_of
from clary.control.rehearsal.readings import Reading

MAX_POINTS = 400  # points of a curve

Points = list[tuple[float, float]]


def curves_of(twin: Run, rehearsal: Run) -> dict[str, Any]:
    """Return the printed losses of both jobs, step by step.

    Keys: `steps`, whether the x values are printed steps (else the twin's steps are counted from 0, over all epochs);
    `twin`, its curve; `rehearsal`, the curve of the steps that led to the model; `undone`, curves of steps that were
    lost and done again; `resumes`, the x values at which attempts resumed.
    """
    scale = scale_of(twin.attempts[-1].readings if twin.attempts else ())
    undone: list[Points] = []
    resumes: list[float] = []
    counted: dict[int, Reading] = {}
    for attempt in rehearsal.attempts:
        placed = {scale.place(reading): reading for reading in relevant(attempt.readings)}
        if not placed:
            continue
        first = min(placed)
        gone = {place: reading for place, reading in counted.items() if place >= first}
        if counted:
            resumes.append(_at(scale, first))
            undone.append(_points(scale, gone))
        counted = {place: reading for place, reading in counted.items() if place < first} | placed
    of_twin = {
        scale.place(reading): reading for attempt in twin.attempts[-1:] for reading in relevant(attempt.readings)
    }
    return {
        "steps": not scale.counts_epochs,
        "twin": _points(scale, of_twin),
        "rehearsal": _points(scale, counted),
        "undone": [points for points in undone if points],
        "resumes": resumes,
    }


def _at(scale: Scale, place: int) -> float:
    if scale.counts_epochs or not scale.steps:
        return float(place)
    return scale.steps[min(place, len(scale.steps) - 1)][1]


def _points(scale: Scale, placed: Mapping[int, Reading]) -> Points:
    found = [
        (_at(scale, place), placed[place].loss or 0.0)
        for place in sorted(placed)
        if placed[place].loss is not None and math.isfinite(placed[place].loss or 0.0)
    ]
    return list(_thinned(found))


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return at most `MAX_POINTS` points, among them the first and the last."""
    if len(points) <= MAX_POINTS:
        return points
    last = len(points) - 1
    return [points[round(index * last / (MAX_POINTS - 1))] for index in range(MAX_POINTS)]
