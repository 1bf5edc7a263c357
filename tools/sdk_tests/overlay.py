"""A pytest plugin for the SDK's own tests: replaced fixtures, a deadline for each test, and a record of its end.

It runs in the SDK's environment, beside the SDK's conftest files, which stay as they are: a fixture whose name is in
`CLARY_SDK_TESTS_FIXTURES` has the value that stands there, and its function is not called. Each test's end is a line
of JSON in the file that `CLARY_SDK_TESTS_RECORD` names.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

_FIXTURES: dict[str, Any] = json.loads(os.environ["CLARY_SDK_TESTS_FIXTURES"])
_RECORD = Path(os.environ["CLARY_SDK_TESTS_RECORD"])
_DEADLINE_S = float(os.environ["CLARY_SDK_TESTS_DEADLINE_S"])
_AGAIN_S = 15.0  # a test that waits on, in a `finally` or for its threads, is told again
_MOST_WORDS = 2000


class DeadlineError(Exception):
    """A test took longer than it may."""


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> object | None:
    """Replace the value of a fixture that `CLARY_SDK_TESTS_FIXTURES` names; leave all others alone."""
    if fixturedef.argname not in _FIXTURES:
        return None
    value: object = _FIXTURES[fixturedef.argname]
    fixturedef.cached_result = (value, fixturedef.cache_key(request), None)
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Generator[None, object, object]:
    """Raise in a test that has passed its deadline, and again while it does not end."""
    over = threading.Event()

    def watch() -> None:
        wait_s = _DEADLINE_S
        while not over.wait(wait_s):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            wait_s = _AGAIN_S

    watcher = threading.Thread(target=watch, name="deadline", daemon=True)
    signal.signal(signal.SIGUSR1, _raise_deadline)
    item.stash[_ENDS] = {"test": item.nodeid, "outcome": "passed", "words": "", "began": time.time()}
    watcher.start()
    try:
        return (yield)
    finally:
        over.set()
        watcher.join()
        end = item.stash[_ENDS]
        end["seconds"] = round(time.time() - end.pop("began"), 1)
        with _RECORD.open("a", encoding="utf-8") as file:
            file.write(json.dumps(end) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, Any]:
    """Keep how a phase of a test ended; the first that did not pass decides."""
    report = yield
    end = item.stash[_ENDS]
    if end["outcome"] == "passed" and report.outcome != "passed":
        words = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else _words(call)
        end.update(outcome=report.outcome, words=words[-_MOST_WORDS:], phase=report.when)
    return report


def _words(call: Any) -> str:
    error = call.excinfo.value if call.excinfo else None
    return f"{type(error).__name__}: {error}"


def _raise_deadline(_number: int, _frame: FrameType | None) -> None:
    raise DeadlineError(f"did not end within {_DEADLINE_S:g} s")


_ENDS = pytest.StashKey[dict[str, Any]]()
