"""What a program said before it failed: the one line of its output that names the error.

Where: `log_intake` keeps the last lines of every process; `host_life` adds the one found here to the failure of a
program, so that FailureReason says more than an exit code. A heuristic on text for people: nothing is decided by it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from clary.agent.supervisor.error_scanner import PREFIX, TRACEBACK

NUM_LINES = 200  # kept of each process: ranks that share a pipe write their tracebacks one after the other
LINE_CHARACTERS = 400  # kept of each line; FailureReason has room for 1024

_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?::.*)?$")
_MPIRUN = re.compile(r"mpirun noticed that (process rank .*)")
_WORDS = re.compile(r"\w")


def error_line(lines: Sequence[str]) -> str | None:
    """Return the line that names the error; None if no line has a word in it.

    In this order: the exception below the last traceback; what mpirun says of a rank that a signal ended; the last
    line that looks like an exception's; the last line.
    """
    plain = [PREFIX.sub("", line, count=1).rstrip() for line in lines]
    return _below_traceback(plain) or _last_match(plain, _MPIRUN) or _last_match(plain, _EXCEPTION) or _last_line(plain)


def _below_traceback(lines: Sequence[str]) -> str | None:
    starts = [index for index, line in enumerate(lines) if line == TRACEBACK]
    if not starts:
        return None
    below = (line for line in lines[starts[-1] + 1 :] if line and not line[0].isspace())
    return next(below, None)


def _last_match(lines: Sequence[str], pattern: re.Pattern[str]) -> str | None:
    for line in reversed(lines):
        match = pattern.search(line)
        if match is not None:
            return match[match.lastindex or 0]
    return None


def _last_line(lines: Sequence[str]) -> str | None:
    return next((line.strip() for line in reversed(lines) if _WORDS.search(line)), None)
