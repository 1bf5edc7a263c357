"""Choice of the line of a failed program's output that names the error.

Where: `log_intake` keeps the last lines of every process; `program_end` adds the chosen line to the failure of a
program, so that FailureReason has more than an exit code. It is a heuristic for users: no decision depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone

from clary.agent.log.error_scanner import ErrorScanner

NUM_LINES = 200  # lines kept per process: ranks that share a pipe write their tracebacks one after the other
LINE_CHARACTERS = 400  # characters kept per line; FailureReason is limited to 1024

_WORDS = re.compile(r"\w")
_CHATTER = re.compile(r"(?:\[rank\d+\]:)?\s*\[?[IW]\d{4} \d\d:\d\d:\d\d")  # logs and warnings of torch's libraries
_NO_TIME = datetime.fromtimestamp(0, timezone.utc)  # only the text is used, not its time


def error_line(lines: Sequence[str]) -> str | None:
    """Return the line that names the error: the last that `ErrorScanner` recognises, else the last line."""
    scanner = ErrorScanner(None)
    for line in lines:
        scanner.feed(line, _NO_TIME)
    told = (line.strip() for line in reversed(lines) if _WORDS.search(line) and not _CHATTER.match(line))
    return scanner.words or next(told, None)
