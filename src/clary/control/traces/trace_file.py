"""Traces in Chrome's format, event by event: a file may be far larger than memory.

Source: "Trace Event Format" (the JSON object form); Kineto's `ChromeTraceLogger` for `baseTimeNanoseconds`.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_TEXT_BYTES = 4 * 1024 * 1024 * 1024  # maximum number of bytes read from an unpacked trace
MAX_EVENT_CHARACTERS = 4 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*([0-9]{1,20})')
_KEPT_CHARACTERS = 4096  # a sixteenth of the text that is kept after the events and may contain the base time
_SKIPPED = re.compile(r"[\s,]*")


class TraceError(Exception):
    """A file that is not a trace, or contains only a part of one."""


class TraceFile:
    """One packed trace; `events` may be called again.

    Attributes:
        base_us: Unix time of the trace's time 0, in microseconds; known after `events` has yielded all events.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.base_us = 0.0

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events in the order of the file. Raises: TraceError."""
        try:
            yield from self._events()
        except (OSError, EOFError, zlib.error, RecursionError) as error:
            raise TraceError(f"{self._path.name} cannot be read: {error}") from error

    def _events(self) -> Iterator[dict[str, Any]]:
        chunks = _texts(self._path)
        text = ""
        while (found := _EVENTS.search(text)) is None:
            chunk = next(chunks, None)
            if chunk is None or len(text) > MAX_EVENT_CHARACTERS:
                raise TraceError(f"{self._path.name} has no traceEvents")
            text += chunk
        self._look_for_base(text[: found.start()])
        decoder, at = json.JSONDecoder(), found.end()
        while True:
            at = _past_separators(text, at)
            if at < len(text) and text[at] == "]":
                break
            try:
                event, at = decoder.raw_decode(text, at)
            except ValueError as error:
                chunk = next(chunks, None)
                if chunk is None or len(text) - at > MAX_EVENT_CHARACTERS:
                    raise TraceError(f"{self._path.name} is cut off, or is not JSON: {error}") from error
                text, at = text[at:] + chunk, 0
                continue
            if isinstance(event, dict):
                yield event
        rest = text[at:]
        for chunk in chunks:
            rest = (rest + chunk)[-_KEPT_CHARACTERS * 16 :]
        self._look_for_base(rest)

    def _look_for_base(self, text: str) -> None:
        if found := _BASE.search(text):
            self.base_us = int(found.group(1)) / 1000


def _past_separators(text: str, at: int) -> int:
    found = _SKIPPED.match(text, at)
    return at if found is None else found.end()


def _texts(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    num_bytes = 0
    with gzip.open(path, "rb") as file:
        while (data := file.read(_CHUNK_BYTES)) and num_bytes < MAX_TEXT_BYTES:
            num_bytes += len(data)
            yield decoder.decode(data)
    yield decoder.decode(b"", final=True)
