"""Selection of the histograms and images that a job keeps: the first, the last, and evenly spaced pictures. Pure.

Where: `store.training_pictures` applies these rules after every batch with new histograms or images.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from clary.contract.training_values import MAX_HISTOGRAM_TAGS, MAX_IMAGE_TAGS, FindingKind

MOST_OF_TAG = {FindingKind.HISTOGRAM: 100, FindingKind.IMAGE: 50}
MOST_TAGS = {FindingKind.HISTOGRAM: MAX_HISTOGRAM_TAGS, FindingKind.IMAGE: MAX_IMAGE_TAGS}
MAX_JOB_BYTES = 128 * 1024 * 1024  # above it large tags keep fewer pictures, at least the first and the last
LEAST_OF_TAG = 2
_SLACK = 4  # a tag is thinned at a quarter more than its limit, so that not every batch thins it
AT_ONCE = 50  # tags thinned per batch, while all writes wait; later batches thin the other tags


@dataclass(frozen=True, kw_only=True)
class TagSize:
    """Number and bytes of the kept pictures of one tag."""

    kind: FindingKind
    tag: str
    num_kept: int
    kept_bytes: int


def tags_to_thin(tags: Sequence[TagSize]) -> list[tuple[TagSize, int]]:
    """Return the tags of a job with too many pictures, each with the number that it may keep.

    The result has at most AT_ONCE tags: those with the largest surplus.
    """
    is_full = sum(tag.kept_bytes for tag in tags) > MAX_JOB_BYTES
    share_bytes = MAX_JOB_BYTES // max(1, len(tags))
    found = []
    for tag in tags:
        most = MOST_OF_TAG[tag.kind]
        if is_full:
            mean_bytes = max(1, tag.kept_bytes // max(1, tag.num_kept))
            most = max(LEAST_OF_TAG, min(most, share_bytes // mean_bytes))
        if tag.num_kept > most + most // _SLACK:
            found.append((tag, most))
    return heapq.nlargest(AT_ONCE, found, key=lambda item: item[0].num_kept - item[1])


def surplus(steps: Sequence[int], most: int) -> list[int]:
    """Return the positions to drop so that `most` stay, among them the first and the last.

    Positions are dropped one by one, each time the position whose removal leaves the smallest gap. If a series grows
    and is thinned repeatedly, no gap becomes wider than about twice the gap of even spacing.

    Args:
        steps: in ascending order. If all are equal (some programs report no step), gaps are counted in positions.
        most: number of positions to keep; at least LEAST_OF_TAG are kept.
    """
    num = len(steps)
    at = list(steps) if num and steps[0] != steps[-1] else list(range(num))
    before, behind = list(range(-1, num - 1)), list(range(1, num + 1))
    gaps = [(at[place + 1] - at[place - 1], place) for place in range(1, num - 1)]
    heapq.heapify(gaps)
    gone: set[int] = set()
    while gaps and num - len(gone) > max(most, LEAST_OF_TAG):
        gap, place = heapq.heappop(gaps)
        if place in gone or gap != at[behind[place]] - at[before[place]]:
            continue  # a neighbour was dropped since
        gone.add(place)
        left, right = before[place], behind[place]
        behind[left], before[right] = right, left
        for neighbour in (left, right):
            if 0 < neighbour < num - 1:
                heapq.heappush(gaps, (at[behind[neighbour]] - at[before[neighbour]], neighbour))
    return sorted(gone)
