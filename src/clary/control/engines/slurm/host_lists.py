"""Reads Slurm's short forms of names and numbers: `node-[1-3,7]`, `0-2,5`. Pure.

Where: `queue_rows` reads nodes and indices, and writes indices; `others_rows` reads nodes.
Source: slurm.conf(5), "NodeName"; `scontrol show hostnames` gives the same result.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

MAX_NAMES = 65_536
MAX_INDICES = 100_000
_PIECE = re.compile(r"([^\[\]]*)(?:\[([0-9,-]+)\])?")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def expand(text: str) -> tuple[str, ...]:
    """Return the names of a list, in its order; an empty result for an empty, `(null)`, malformed or too long list."""
    names: list[str] = []
    for item in _items(text):
        try:
            found = _expand_item(item)
        except ValueError:
            return ()
        names.extend(found)
        if len(names) > MAX_NAMES:
            return ()
    return tuple(names)


def read_indices(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as `0-2,5`, ascending; an empty result for a malformed or too long list."""
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or len(part) > len(f"{MAX_INDICES}-{MAX_INDICES}"):
            return ()
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= MAX_INDICES:
            return ()
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def write_indices(indices: Collection[int]) -> str:
    """Return the list of numbers in the form that `read_indices` parses."""
    parts: list[str] = []
    ordered = sorted(indices)
    start = 0
    for position in range(1, len(ordered) + 1):
        if position == len(ordered) or ordered[position] != ordered[position - 1] + 1:
            first, last = ordered[start], ordered[position - 1]
            parts.append(f"{first}" if first == last else f"{first}-{last}")
            start = position
    return ",".join(parts)


def _items(text: str) -> Iterator[str]:
    """Yield the parts between commas that are outside of brackets."""
    if text in ("", "(null)", "None"):
        return
    depth, start = 0, 0
    for position, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _expand_item(item: str) -> list[str]:
    names = [""]
    position = 0
    while position < len(item):
        match = _PIECE.match(item, position)
        if match is None or match.end() == position:
            raise ValueError(item)
        position = match.end()
        endings = _numbers(match[2]) if match[2] is not None else [""]
        if len(names) * len(endings) > MAX_NAMES:
            raise ValueError(item)
        names = [name + match[1] + ending for name in names for ending in endings]
    return names


def _numbers(text: str) -> list[str]:
    """Return the numbers between brackets as texts that keep their leading zeros."""
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) - int(match[1]) >= MAX_NAMES:
            raise ValueError(text)
        width = len(match[1])
        found += [f"{number:0{width}d}" for number in range(int(match[1]), int(match[2] or match[1]) + 1)]
    return found
