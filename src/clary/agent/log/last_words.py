"""A failed program's last words: the one line of its output that names the error.

Where: `log_intake` keeps the last lines of every process; `program_end` adds the one found here to the failure of a
program, so that FailureReason says more than an exit code. A heuristic on text for people: nothing is decided by it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone

from clary.agent.log.error_scanner import ErrorScanner

NUM_LINES = 200  # kept of each process: ranks that share a pipe write their tracebacks one after the other
LINE_CHARACTERS = 400  # kept of each line; FailureReason has room for 1024

_WORDS = re.compile(r"\w")
_CHATTER = re.compile(r"(?:\[rank\d+\]:)?\s*\[?[IW]\d{4} \d\d:\d\d:\d\d")  # what torch's libraries tell and warn of
_NO_TIME = datetime.fromtimestamp(0, timezone.utc)  # the words are asked for, not their times


def error_line(lines: Sequence[str]) -> str | None:
    """Return the line that names the error: the last one of `ErrorScanner`, else the program's own last line."""
    scanner = ErrorScanner(None)
    for line in lines:
        scanner.feed(line, _NO_TIME)
    told = (line.strip() for line in reversed(lines) if _WORDS.search(line) and not _CHATTER.match(line))
    return scanner.words or next(told, None)
