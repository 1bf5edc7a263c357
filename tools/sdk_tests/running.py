"""Runs one suite of the SDK's tests with pytest and reads how each ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.sdk_tests.plan import Suite

NOT_RUN = "not run"
_PLUGINS = Path(__file__).parent
_MOST_TESTS = 60  # of one suite, for the time that it may take as a whole
_ENDED_NORMALLY = (0, 1, 5)  # all passed, some failed, none matched


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a test ended.

    Attributes:
        test: Its name, from the checkout on.
        outcome: passed, failed, skipped or not run.
        words: What it said when it did not pass.
        seconds: How long it took.
    """

    test: str
    outcome: str
    words: str = ""
    seconds: float = 0.0


def run_suite(
    suite: Suite,
    *,
    checkout: Path,
    python: Path,
    environment: Mapping[str, str],
    fixtures: Mapping[str, Any],
    deadline_s: float,
    match: str,
    log: Path,
) -> list[Ended]:
    """Run a suite and return the ends of its tests; pytest's output goes to `log`."""
    record = log.with_suffix(".jsonl")
    record.unlink(missing_ok=True)
    record.touch()
    told = {
        "CLARY_SDK_TESTS_FIXTURES": json.dumps(dict(fixtures)),
        "CLARY_SDK_TESTS_RECORD": str(record),
        "CLARY_SDK_TESTS_DEADLINE_S": str(deadline_s),
        "PYTHONPATH": str(_PLUGINS),
        "PATH": f"{python.parent}{os.pathsep}{environment['PATH']}",
        "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [str(python), "-m", "pytest", "-p", "overlay", "-p", "no:cacheprovider", "-q", "--tb=short"]
    command += ["--rootdir", str(checkout), *(["-k", match] if match else []), *suite.paths]
    ended_with = _run(command, checkout / suite.folder, {**environment, **told}, log, deadline_s * _MOST_TESTS)
    ends = read_record(record)
    if ended_with not in _ENDED_NORMALLY:
        words = f"pytest ended with {ended_with}; see {log}"
        ends.append(Ended(test=" ".join(suite.paths), outcome=NOT_RUN, words=words))
    return ends


def read_record(record: Path) -> list[Ended]:
    """Return the ends that the plugin wrote."""
    lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    keys = ("test", "outcome", "words", "seconds")
    return [Ended(**{key: line[key] for key in keys}) for line in lines]


def _run(command: list[str], folder: Path, environment: Mapping[str, str], log: Path, limit_s: float) -> int | None:
    """Run a command and return its exit code; None if it was ended at its limit, with its process group."""
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdout=output, stderr=output, start_new_session=True
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
