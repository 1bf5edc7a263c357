"""One log line as queries see it, and its fields.

Fields: @timestamp and @ingestionTime (milliseconds; shown as time), @message, @logStream, @log, @ptr, and members of
messages that are JSON objects: `loss`, `optimizer.lr`, `losses.0`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any

from clary.control.insights.errors import MalformedQuery
from clary.control.insights.syntax import Bin, Field
from clary.control.insights.values import Value

TIMES = frozenset({"@timestamp", "@ingestionTime"})
_NOTHING: Any = object()


class LogLine:
    """One line; members that are expensive to compute are computed on demand."""

    __slots__ = ("_members", "at_ms", "ingestion_ms", "log", "message", "sequence", "stream")

    def __init__(self, log: str, stream: str, sequence: int, at_ms: int, ingestion_ms: int, message: str) -> None:
        self.log = log
        self.stream = stream
        self.sequence = sequence
        self.at_ms = at_ms
        self.ingestion_ms = ingestion_ms
        self.message = message
        self._members: Any = _NOTHING

    @property
    def pointer(self) -> str:
        """The permanent and unique name of the line."""
        return base64.urlsafe_b64encode(f"{self.stream}:{self.sequence}".encode()).decode("ascii")

    def member(self, name: str) -> Value:
        """Return a member of a message that is a JSON object, or None without such a member."""
        if self._members is _NOTHING:
            self._members = _members_of(self.message)
        if self._members is None:
            return None
        return _leaf(self._members, name)


Getter = Callable[[LogLine], Value]

_GETTERS: dict[str, Getter] = {
    "@timestamp": lambda line: line.at_ms,
    "@ingestionTime": lambda line: line.ingestion_ms,
    "@message": lambda line: line.message,
    "@logStream": lambda line: line.stream,
    "@log": lambda line: line.log,
    "@ptr": lambda line: line.pointer,
}


def getter_of(source: Field | Bin) -> Getter:
    """Return the function that reads a field of a line.

    Raises: MalformedQuery for a field with @ that lines do not have.
    """
    if isinstance(source, Bin):
        width_ms = source.width_ms
        return lambda line: line.at_ms - line.at_ms % width_ms
    known = _GETTERS.get(source.name)
    if known is not None:
        return known
    if source.name.startswith("@"):
        raise MalformedQuery(
            f"unknown field {source.name[:80]!r}: expected one of {', '.join(_GETTERS)}, or a member of JSON messages",
            start=source.place.start,
            end=source.place.end,
        )
    name = source.name
    return lambda line: line.member(name)


def is_time(source: Field | Bin) -> bool:
    """Whether a field is shown as a time."""
    return isinstance(source, Bin) or source.name in TIMES


def _members_of(message: str) -> Any:
    if not message.startswith("{"):
        return None
    try:
        return json.loads(message)
    except (ValueError, RecursionError):
        return None


def _leaf(members: Any, name: str) -> Value:
    """Return the value at a path of names and numbers separated by dots; names that contain dots are tried first."""
    found = members.get(name, _NOTHING)
    if found is _NOTHING:
        found = members
        for part in name.split("."):
            if isinstance(found, dict):
                found = found.get(part)
            elif isinstance(found, list) and part.isdecimal() and len(part) < 6:
                found = found[int(part)] if int(part) < len(found) else None
            else:
                return None
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, int) and not -(1 << 63) <= found < 1 << 63:
        return float(found) if abs(found) < 10**300 else None
    if isinstance(found, float) and not math.isfinite(found):
        return None
    return found if isinstance(found, str | int | float) else None
