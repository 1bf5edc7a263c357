"""Short texts for many ranks: `0-7`, `0-14:2`, `1,4,6`. Dumps hold this form, and it is shown to users.

Where: groups of ranks in host dumps. Both directions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_RANKS = 1 << 16  # limit for one text, as the input comes from programs
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")


def rank_text(ranks: Iterable[int]) -> str:
    """Return the ranks in order; three or more evenly spaced ranks are one span. A range takes no time."""
    if isinstance(ranks, range) and ranks.step > 0 and len(ranks) > 2:
        return _span(ranks[0], ranks[-1], ranks.step)
    rest = sorted(set(ranks))
    spans = []
    while rest:
        length = _even_length(rest)
        if length < 3:  # two ranks are no span
            spans.append(str(rest[0]))
            length = 1
        else:
            spans.append(_span(rest[0], rest[length - 1], rest[1] - rest[0]))
        rest = rest[length:]
    return ",".join(spans)


def ranks_of(text: str) -> tuple[int, ...]:
    """Return the ranks that a text names, or () if it is not a list of at most MAX_RANKS ranks."""
    return tuple(sorted({rank for span in spans_of(text) for rank in span}))


def spans_of(text: str) -> tuple[range, ...]:
    """Return the ranks that a text names as ranges, or () as `ranks_of`; they take no memory."""
    found: list[range] = []
    num_ranks = 0
    for item in text.split(",") if text else ():
        match = _SPAN.fullmatch(item)
        if match is None:
            return ()
        first, last, stride = (int(word) if word else None for word in match.groups())
        assert first is not None
        span = range(first, first + 1) if last is None else range(first, last + 1, stride or 1)
        num_ranks += len(span)
        if num_ranks > MAX_RANKS:
            return ()
        if span:
            found.append(span)
    return tuple(found)


def _span(first: int, last: int, stride: int) -> str:
    return f"{first}-{last}" + (f":{stride}" if stride > 1 else "")


def _even_length(ranks: list[int]) -> int:
    """Return how many of the first ranks are evenly spaced."""
    length = min(2, len(ranks))
    while length < len(ranks) and ranks[length] - ranks[length - 1] == ranks[1] - ranks[0]:
        length += 1
    return length
