"""What a program said before it failed: the one line of its output that names the error.

Where: `log_intake` keeps the last lines of every process; `host_life` adds the one found here to the failure of a
program, so that FailureReason says more than an exit code. A heuristic on text for people: nothing is decided by it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

NUM_LINES = 60  # kept of each process; below a traceback's last line torch and mpirun write a few more
LINE_CHARACTERS = 400  # kept of each line; FailureReason has room for 1024

# What mpirun --tag-output, our own mpirun-style prefix and torch's excepthook put before a line.
_PREFIX = re.compile(r"^(?:\[1,[^\]]*\]<std(?:out|err)>:\s?)?(?:\[rank\d+\]:\s?)?")
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?::.*)?$")
_MPIRUN = re.compile(r"mpirun noticed that (process rank .*)")
_WORDS = re.compile(r"\w")


def error_line(lines: Sequence[str]) -> str | None:
    """Return the line that names the error; None if no line has a word in it.

    In this order: the exception below the last traceback; what mpirun says of a rank that a signal ended; the last
    line that looks like an exception's; the last line.
    """
    plain = [_PREFIX.sub("", line, count=1).rstrip() for line in lines]
    return _below_traceback(plain) or _last_match(plain, _MPIRUN) or _last_match(plain, _EXCEPTION) or _last_line(plain)


def _below_traceback(lines: Sequence[str]) -> str | None:
    starts = [index for index, line in enumerate(lines) if line == _TRACEBACK]
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
