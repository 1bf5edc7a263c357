"""The slowest test files of a run, printed at its end: where to save time.

A plugin that tests/conftest.py names. pytest's own list shows single calls; it lacks files of many short tests. Setups
and teardowns count for the file whose test they ran for, so the first file that uses a shared service carries its
start.
"""

from collections import defaultdict

import pytest

NUM_FILES = 15
LEAST_S = 60.0  # of all tests of a run together; a shorter run prints nothing

_seconds: dict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a setup, call or teardown to its file; under xdist the controller gets the reports of all workers."""
    _seconds[report.nodeid.partition("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the slowest files."""
    lines = lines_of(_seconds)
    if lines:
        terminalreporter.section(f"slowest {len(lines)} files")
    for line in lines:
        terminalreporter.write_line(line)


def lines_of(seconds: dict[str, float]) -> list[str]:
    """Return a line for each of the slowest files, slowest first; an empty list for a short run.

    Args:
        seconds: of each file.
    """
    total_s = sum(seconds.values())
    if total_s < LEAST_S:
        return []
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:NUM_FILES]
    return [f"{spent_s:7.1f}s {spent_s / total_s:5.1%}  {file}" for file, spent_s in slowest]
