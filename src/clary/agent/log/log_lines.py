r"""Conversion of a process's printed bytes into lines of text for a log.

Where: `log_intake` keeps one `LineSplitter` for each output of each process, so that ranks never mix within a line.
Rules:
- A line ends at `\n` (or `\r\n`), or when its process has ended. An incomplete line is held back without a time limit:
  programs that write in blocks split lines anywhere, and a split line would hide metrics.
- `\r` repaints a line, as progress bars do. A finished line is logged in its last state; the state of a running bar is
  logged at most every `BAR_INTERVAL_S`.
- A line longer than `PIECE_BYTES` becomes several lines; `LineSplitter.has_cut` reports it, so that the log can note
  it.
- Terminal escape sequences are kept or removed as units, as an argument of the splitter determines.
- Invalid UTF-8 is escaped as `\xff`, NUL is removed, an empty line becomes one space (log services refuse empty events,
  and blank lines are part of a program's layout).
"""

from __future__ import annotations

import math

from clary.agent.log.ansi_filter import AnsiFilter

BAR_INTERVAL_S = 5.0
PIECE_BYTES = 65536  # bytes of UTF-8; log services accept 256 KiB per event
BLANK_LINE = " "
_LONGEST_CHARACTER_BYTES = 4


class LineSplitter:
    """Splits one stream of bytes; not thread-safe.

    Args:
        strips_ansi: whether to remove escape sequences.
    """

    def __init__(self, *, strips_ansi: bool = False) -> None:
        self.has_cut = False  # whether a line was too long and was cut into pieces
        self._ansi = AnsiFilter() if strips_ansi else None
        self._partial = b""  # bytes since the last line end; for a progress bar only its last two states
        self._is_bar = False
        self._shown_bar: str | None = None  # the newest state of the bar in the log
        self._bar_shown_at_s = -math.inf
        self._fed_at_s = -math.inf

    def feed(self, data: bytes, now_s: float) -> list[str]:
        """Process bytes; return the lines that they complete. `now_s` is monotonic time."""
        self._fed_at_s = now_s
        if self._ansi is not None:
            data = self._ansi.feed(data)
        whole, newline, rest = data.rpartition(b"\n")
        lines: list[str] = []
        if newline:
            lines = self._complete(self._partial + whole)
            self._partial = b""
        self._partial += rest
        if b"\r" in rest or self._is_bar:
            lines += self._repaint(now_s)
        if len(self._partial) > PIECE_BYTES:
            lines += self._cut_partial()
        return lines

    def tick(self, now_s: float) -> list[str]:
        """Return the state of an idle bar, once."""
        if not self._is_bar or now_s - self._fed_at_s < BAR_INTERVAL_S:
            return []
        return self._show_bar(_last_state(_decode(self._partial)), now_s)

    def finish(self) -> list[str]:
        """Return the remaining text after the end of the stream."""
        if self._ansi is not None:
            self._partial += self._ansi.finish()
        partial, self._partial = self._partial, b""
        return self._complete(partial) if partial else []

    def _complete(self, block: bytes) -> list[str]:
        """Return the lines of a block that ends at a line end."""
        text = _decode(block)
        lines = text.split("\n")
        if "\r" in text:
            lines = [_last_state(line) if "\r" in line else line for line in lines]
        if self._is_bar:
            self._is_bar = False
            if lines[0] == self._shown_bar:  # the log already has the bar's last state
                del lines[0]
            self._shown_bar = None
        if max(map(len, lines), default=0) * _LONGEST_CHARACTER_BYTES > PIECE_BYTES:
            lines = [piece for line in lines for piece in self._pieces(line)]
        return [line or BLANK_LINE for line in lines]

    def _repaint(self, now_s: float) -> list[str]:
        """Keep the last two states of a bar; return the newest complete state if the bar is due."""
        states = self._partial.split(b"\r")
        if len(states) == 1:
            return []
        self._is_bar = True
        whole = next((state for state in reversed(states[:-1]) if state.strip()), b"")
        self._partial = whole + b"\r" + states[-1]
        if not states[-1] and len(states) <= 2:  # the only `\r` is the last byte and may be the start of a `\r\n`
            return []
        return self._show_bar(_decode(whole), now_s)

    def _show_bar(self, state: str, now_s: float) -> list[str]:
        if not state.strip() or state == self._shown_bar or now_s - self._bar_shown_at_s < BAR_INTERVAL_S:
            return []
        self._shown_bar = state
        self._bar_shown_at_s = now_s
        return self._pieces(state)

    def _cut_partial(self) -> list[str]:
        """Remove complete pieces from an unfinished line."""
        end = len(self._partial) - len(self._partial) % PIECE_BYTES
        while end and self._partial[end : end + 1] and self._partial[end] & 0xC0 == 0x80:  # inside a character
            end -= 1
        end = end or PIECE_BYTES
        ready, self._partial = self._partial[:end], self._partial[end:]
        self.has_cut = True
        return self._pieces(_last_state(_decode(ready)))

    def _pieces(self, line: str) -> list[str]:
        if len(line) * _LONGEST_CHARACTER_BYTES <= PIECE_BYTES:
            return [line]
        encoded = line.encode()
        if len(encoded) <= PIECE_BYTES:
            return [line]
        self.has_cut = True
        pieces = []
        start = 0
        while start < len(encoded):
            end = min(start + PIECE_BYTES, len(encoded))
            while end < len(encoded) and encoded[end] & 0xC0 == 0x80:
                end -= 1
            pieces.append(encoded[start:end].decode())
            start = end
        return pieces


def _decode(data: bytes) -> str:
    text = data.decode("utf-8", "backslashreplace")
    return text.replace("\0", "") if "\0" in text else text


def _last_state(line: str) -> str:
    r"""Return the visible state of a line with `\r` in a terminal: the last state that is not blank."""
    return next((state for state in reversed(line.split("\r")) if state.strip()), "")
