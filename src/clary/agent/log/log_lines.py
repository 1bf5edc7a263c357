r"""Bytes that a process prints -> lines of text that a log can hold.

Where: `log_intake` keeps one `LineSplitter` for each output of each process, so that ranks never mix within a line.
Rules, decided once:
- A line ends at `\n` (or `\r\n`), or when its process has ended. Text without an end is held back however long it
  takes: programs that write in blocks cut lines anywhere, and a cut line would hide metrics.
- `\r` repaints a line, as progress bars do. A line shows its last state when it ends; a running bar shows its state at
  most every `BAR_INTERVAL_S`.
- A line longer than `PIECE_BYTES` becomes several lines; `LineSplitter.has_cut` reports it, so that the log can note
it.
- Escape sequences of terminals are kept or removed whole, by an argument of the splitter.
- Invalid UTF-8 is written out as `\xff`, NUL is removed, an empty line becomes one space (log services refuse empty
  events, and blank lines belong to the shape of a program's output).
"""

from __future__ import annotations

import math

from clary.agent.log.ansi_filter import AnsiFilter

BAR_INTERVAL_S = 5.0
PIECE_BYTES = 65536  # of UTF-8; log services take 256 KiB per event
BLANK_LINE = " "
_LONGEST_CHARACTER_BYTES = 4


class LineSplitter:
    """Splits one stream of bytes; not safe for several threads at once.

    Args:
        strips_ansi: whether escape sequences are taken out.
    """

    def __init__(self, *, strips_ansi: bool = False) -> None:
        self.has_cut = False  # whether a line was too long and was cut into pieces
        self._ansi = AnsiFilter() if strips_ansi else None
        self._partial = b""  # bytes since the last line end; of a bar only its last two states
        self._is_bar = False
        self._shown_bar: str | None = None  # the newest state in the log
        self._bar_shown_at_s = -math.inf
        self._fed_at_s = -math.inf

    def feed(self, data: bytes, now_s: float) -> list[str]:
        """Take bytes and return the lines that they complete; `now_s` is monotonic time."""
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
        """Return the rest when the stream has ended."""
        if self._ansi is not None:
            self._partial += self._ansi.finish()
        partial, self._partial = self._partial, b""
        return self._complete(partial) if partial else []

    def _complete(self, block: bytes) -> list[str]:
        """Lines of a block that ends where a line ends."""
        text = _decode(block)
        lines = text.split("\n")
        if "\r" in text:
            lines = [_last_state(line) if "\r" in line else line for line in lines]
        if self._is_bar:
            self._is_bar = False
            if lines[0] == self._shown_bar:  # the log shows the bar's last state already
                del lines[0]
            self._shown_bar = None
        if max(map(len, lines), default=0) * _LONGEST_CHARACTER_BYTES > PIECE_BYTES:
            lines = [piece for line in lines for piece in self._pieces(line)]
        return [line or BLANK_LINE for line in lines]

    def _repaint(self, now_s: float) -> list[str]:
        """Keep the last two states of a bar and return the newest whole one when it is time to show it."""
        states = self._partial.split(b"\r")
        if len(states) == 1:
            return []
        self._is_bar = True
        whole = next((state for state in reversed(states[:-1]) if state.strip()), b"")
        self._partial = whole + b"\r" + states[-1]
        if not states[-1] and len(states) <= 2:  # only a `\r` that may belong to a `\r\n`
            return []
        return self._show_bar(_decode(whole), now_s)

    def _show_bar(self, state: str, now_s: float) -> list[str]:
        if not state.strip() or state == self._shown_bar or now_s - self._bar_shown_at_s < BAR_INTERVAL_S:
            return []
        self._shown_bar = state
        self._bar_shown_at_s = now_s
        return self._pieces(state)

    def _cut_partial(self) -> list[str]:
        """Drop whole pieces of a line that has not ended."""
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
    r"""Return the visible state of a line with `\r` in a terminal: the last one that is not blank."""
    return next((state for state in reversed(line.split("\r")) if state.strip()), "")
