"""Removal of ANSI escape sequences from a stream of bytes: colours, cursor movements, titles, links.

Where: `log_lines.LineSplitter` filters a process's output with it if the setting `log_ansi` is strip. The result does
not depend on chunk sizes, because an incomplete sequence is held back.
Source: ECMA-48, sections 5.3 to 5.6; xterm control sequences for OSC that BEL ends.
"""

from __future__ import annotations

import re

# Length limits keep the held text small; a longer sequence counts as text. No sequence spans a line end.
_CSI = rb"\[[0-?]{0,64}[ -/]{0,8}"
_STRING = rb"[\]PX^_][^\x07\x1b\r\n]{0,4096}"
_SHORT = rb"[ -/]{0,8}"
_SEQUENCE = re.compile(rb"\x1b(?:" + _CSI + rb"[@-~]|" + _STRING + rb"(?:\x07|\x1b\\)|" + _SHORT + rb"[0-OQ-WYZ\\`-~])")
_BEGUN = re.compile(rb"\x1b(?:" + _CSI + rb"|" + _STRING + rb"\x1b?|" + _SHORT + rb")\Z")


class AnsiFilter:
    """Filters one stream; not thread-safe."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Process bytes; return the bytes outside of escape sequences."""
        if not self._held and b"\x1b" not in data:
            return data
        data = self._held + data
        begun = _BEGUN.search(data)
        end = begun.start() if begun is not None else len(data)
        self._held = data[end:]
        return _SEQUENCE.sub(b"", data[:end])

    def finish(self) -> bytes:
        """Return the held bytes of an unfinished sequence."""
        held, self._held = self._held, b""
        return held
