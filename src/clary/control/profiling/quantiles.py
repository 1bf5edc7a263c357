"""Quantiles, means and windows over points that stand for several rows each. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clary.control.series.queries import Point

LEAST_POINTS = 10  # least points of a window; fewer points have no meaningful quantiles


@dataclass(frozen=True, kw_only=True)
class Box:
    """The distribution of values, as a box plot shows it, and the number of values."""

    least: float
    p5: float
    p25: float
    p50: float
    p75: float
    p95: float
    greatest: float
    mean: float
    count: int


def box_of(points: Sequence[Point]) -> Box | None:
    """Return the distribution of a series' values; None for an empty series."""
    if not points:
        return None
    p5, p25, p50, p75, p95 = quantiles(points, (0.05, 0.25, 0.5, 0.75, 0.95))
    return Box(
        least=min(point.least for point in points),
        p5=p5,
        p25=p25,
        p50=p50,
        p75=p75,
        p95=p95,
        greatest=max(point.greatest for point in points),
        mean=mean_of(points),
        count=num_rows(points),
    )


def quantiles(points: Sequence[Point], shares: Iterable[float]) -> list[float]:
    """Return quantiles of the points' means, each weighted by its number of rows; needs at least one point."""
    ordered = sorted((point.mean, point.count) for point in points)
    total = sum(count for _, count in ordered)
    found = []
    for share in shares:
        passed = 0.0
        value = ordered[-1][0]
        for mean, count in ordered:
            passed += count
            if passed >= share * total:
                value = mean
                break
        found.append(value)
    return found


def mean_of(points: Sequence[Point]) -> float:
    """Return the mean of all rows; needs at least one point."""
    return sum(point.mean * point.count for point in points) / sum(point.count for point in points)


def deviation_of(points: Sequence[Point]) -> float:
    """Return the standard deviation of the points' means, each weighted by its number of rows."""
    mean = mean_of(points)
    total = sum(point.count for point in points)
    return math.sqrt(sum(point.count * (point.mean - mean) ** 2 for point in points) / total)


def num_rows(points: Iterable[Point]) -> int:
    """Return the number of rows that points stand for."""
    return round(sum(point.count for point in points))


def after_patience(points: Sequence[Point], patience: float) -> tuple[Point, ...]:
    """Return the points without the first `patience` rows."""
    passed = 0.0
    for index, point in enumerate(points):
        if passed >= patience:
            return tuple(points[index:])
        passed += point.count
    return ()


def windows(points: Sequence[Point], size: float, *, least_points: int = LEAST_POINTS) -> list[tuple[Point, ...]]:
    """Cut points into consecutive windows, each of at least `size` rows and `least_points` points.

    A last window that is too small is dropped.
    """
    found: list[tuple[Point, ...]] = []
    window: list[Point] = []
    rows = 0.0
    for point in points:
        window.append(point)
        rows += point.count
        if rows >= size and len(window) >= least_points:
            found.append(tuple(window))
            window, rows = [], 0.0
    return found
