"""Runs one function of a program of tests/gpu on its ranks: `one_test.py PROGRAM FUNCTION SIZE`."""

from __future__ import annotations

import sys
from pathlib import Path

from gpu_outcomes import failure_of, reason_of_absence  # type: ignore[import-not-found]
from tools.gpu_checks.running import ABSENT, FAILED, PASSED
from tools.gpu_checks.telling import tell


def main(program: str, function: str, size: str) -> None:
    """Run it, and tell how it ended."""
    failure = failure_of(Path(program), function, int(size), only=function)
    if failure is None:
        tell(PASSED)
        return
    reason = reason_of_absence(failure)
    tell(FAILED if reason is None else ABSENT, failure if reason is None else reason)


if __name__ == "__main__":
    main(*sys.argv[1:])
