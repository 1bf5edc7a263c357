"""Filter of text for a terminal: keeps text and colours, and spells out all other control characters.

Where: `main` wraps stdout and stderr of every command in a `GuardedTerminal` if they are terminals. Log lines, tags,
names of channels and reasons of failures are written by strangers; a terminal obeys control codes in text - to set the
clipboard (OSC 52), to change its title, to overwrite printed lines - and some terminals answer as if a user typed.
Pipes and files get every byte: their readers may need it. The guard does not affect `clary logs --json` or the setting
`log_ansi`.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

# Select Graphic Rendition: colours, bold and the like (ECMA-48, 8.3.117).
_GRAPHIC = r"\x1b\[[0-9;:]{0,64}m"
# All other control characters except line end and tab, and characters that reverse the direction of text and so
# disguise a line.
_ORDER = re.compile(
    rf"{_GRAPHIC}|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
_RESET = "\x1b[0m"


def safe_text(text: str) -> str:
    """Return a text whose only control codes are colours; other codes are spelled out."""
    return _ORDER.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    order = found[0]
    return order if len(order) > 1 else order.encode("unicode_escape").decode()


class GuardedTerminal:
    """A terminal stream that writes safe text; all other methods are those of the wrapped stream."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text, made safe; return its length."""
        self.stream.write(safe_text(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts, made safe."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def guarded_terminals() -> Iterator[None]:
    """Wrap stdout and stderr in the guard if they are terminals.

    stdout spells out characters that its encoding lacks, as stderr does: a log has any, and a locale may be Latin-1.
    """
    before = sys.stdout, sys.stderr
    plain = sys.stdout
    # With "surrogateescape", as in the C locale, names that are not UTF-8 are printed byte for byte.
    is_strict = isinstance(plain, io.TextIOWrapper) and plain.errors == "strict"
    if isinstance(plain, io.TextIOWrapper) and is_strict:
        plain.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (_guarded(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        if isinstance(plain, io.TextIOWrapper) and is_strict and not plain.closed:
            plain.reconfigure(errors="strict")


def draw_over(stream: TextIO, text: str) -> None:
    """Replace the present line of a terminal by a text; an empty text removes the line."""
    raw = stream.stream if isinstance(stream, GuardedTerminal) else stream
    raw.write(f"\r\x1b[K{safe_text(text)}")
    raw.flush()


def draw_lines(stream: TextIO, lines: Sequence[str], num_before: int) -> None:
    """Replace the last lines of a terminal; the cursor is below them.

    Args:
        stream: stream of a terminal.
        lines: lines to write, each no wider than the screen; all of them fit on the screen.
        num_before: number of lines to replace.
    """
    raw = stream.stream if isinstance(stream, GuardedTerminal) else stream
    up = f"\x1b[{num_before}F" if num_before else ""
    raw.write(f"{up}\x1b[J" + "".join(f"{safe_text(line)}\n" for line in lines))
    raw.flush()


def ended_colours(text: str) -> str:
    """Return a line that resets its colours at the end."""
    return f"{text}{_RESET}" if "\x1b[" in text else text


def _guarded(stream: TextIO) -> TextIO:
    is_terminal = stream is not None and not isinstance(stream, GuardedTerminal) and stream.isatty()
    return cast("TextIO", GuardedTerminal(stream)) if is_terminal else stream
