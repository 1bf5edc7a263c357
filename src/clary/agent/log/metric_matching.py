"""The process that matches log lines against metric definitions, so that a bad pattern cannot block other work.

Where: `metrics` starts it as a plain script, without the package: `python -I -S metric_matching.py`. Each JSON line of
input is answered by one JSON line of output: first `[pattern, ...]` by `[error or null, ...]`; then, for each batch,
`[text, ...]` by `{"found": [[text index, pattern index, value], ...], "slow": [...]}`, where `slow` has the indices of
patterns that took too long and are no longer used.

A regular expression can take years on a short line and holds the interpreter's lock meanwhile. Only a signal in the
main thread can interrupt it, and only a separate process has an otherwise idle main thread.
"""

from __future__ import annotations

import json
import math
import re
import signal
import sys
from typing import Any

MATCH_LIMIT_S = 1.0  # time limit of one pattern on one line


class TookTooLong(Exception):
    """A pattern ran longer than `MATCH_LIMIT_S`."""


def main() -> None:
    """Answer batches until the end of the input."""
    # Some schedulers signal every process of a step, but the last lines must still be matched.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _interrupt)
    patterns, errors = compile_patterns(json.loads(sys.stdin.readline()))
    _answer(errors)
    for line in sys.stdin:
        found, slow = find_values(patterns, json.loads(line))
        for index in slow:
            patterns[index] = None
        _answer({"found": found, "slow": slow})


def compile_patterns(sources: list[str]) -> tuple[list[re.Pattern[str] | None], list[str | None]]:
    """Return compiled patterns and errors; at each index one of the two is None."""
    patterns: list[re.Pattern[str] | None] = []
    errors: list[str | None] = []
    for source in sources:
        try:
            pattern = re.compile(source)
            problem = None if pattern.groups else "it has no group that holds the value"
        except (re.error, OverflowError, RecursionError) as error:
            problem = str(error)
        patterns.append(None if problem else pattern)
        errors.append(problem)
    return patterns, errors


def find_values(
    patterns: list[re.Pattern[str] | None], texts: list[str]
) -> tuple[list[tuple[int, int, float]], list[int]]:
    """Return (text index, pattern index, value) of each finite number, and the indices of slow patterns."""
    found = []
    slow: list[int] = []
    for text_index, text in enumerate(texts):
        for pattern_index, pattern in enumerate(patterns):
            if pattern is None or pattern_index in slow:
                continue
            signal.setitimer(signal.ITIMER_REAL, MATCH_LIMIT_S)
            try:
                match = pattern.search(text)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except TookTooLong:
                slow.append(pattern_index)
                continue
            value = _number(match.group(1)) if match else None
            if value is not None:
                found.append((text_index, pattern_index, value))
    return found, slow


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _interrupt(_signum: int, _frame: object) -> None:
    raise TookTooLong


def _answer(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
