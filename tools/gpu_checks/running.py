"""Runs one check in a process group of its own, and reads its result from its output.

Where: `__main__`. A check tells its result in the last line of its output that begins with `RESULT `; one that ends
without such a line, or not in time, has failed. All its processes are ended with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.gpu_checks.catalogue import ROOT, Check

MARK = "RESULT "
PASSED, FAILED, ABSENT, NOT_REACHED = "passed", "failed", "absent", "not reached"
_MAX_WORDS = 3000


@dataclass(frozen=True)
class Result:
    """One line of `checks.jsonl`.

    Args:
        status: "passed", "failed", "absent" (cannot run here, `words` say why) or "not reached" (time was over).
        numbers: what was measured, and its bounds.
    """

    name: str
    status: str
    words: str = ""
    seconds: float = 0.0
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def as_line(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(asdict(self))


def environment_of_checks(python: str, *, is_rehearsal: bool) -> dict[str, str]:
    """Return the variables of a check: the project's own source, and the interpreter of its ranks."""
    paths = (
        ROOT,
        ROOT / "src",
        ROOT / "src/clary/compat",
        ROOT / "tests/gpu",
        ROOT / "tests/integration",
        ROOT / "tests/integration/smp",
    )
    ours = {
        "PYTHONPATH": ":".join([*map(str, paths), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CLARY_TEST_TRAIN_PYTHON": python,
        "CLARY_PARALLEL_TIMEOUT_S": "20",
    }
    if is_rehearsal:
        ours |= {"CLARY_CUDA_ON_CPU": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **ours}


def run_check(check: Check, python: str, environment: Mapping[str, str], *, most_s: float) -> Result:
    """Run a check for its own limit, or for `most_s` if that is less: then it is not its fault if it does not end."""
    limit_s = min(check.limit_s, most_s)
    began_s = time.monotonic()
    # A file, not a pipe: a process that the check left behind would keep a pipe open.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [python, *check.arguments],
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_group(process)
        output.seek(0)
        said = output.read()
    seconds = time.monotonic() - began_s
    return judge(check.name, said, code, limit_s=limit_s, seconds=seconds, is_cut=limit_s < check.limit_s)


def judge(name: str, said: str, code: int | None, *, limit_s: float, seconds: float, is_cut: bool = False) -> Result:
    """Make a result of a check's output and exit code; None as code says that it did not end in time. Pure.

    Args:
        is_cut: whether it was given less time than it may need.
    """
    told = [line for line in said.splitlines() if line.startswith(MARK)]
    if code is None:
        words = f"did not end within {limit_s:.0f} s; its last words:\n{said[-_MAX_WORDS:]}"
        if is_cut:
            return Result(
                name, NOT_REACHED, f"the checks before it left it too little time: it {words}", round(seconds, 1)
            )
        return Result(name, FAILED, words, round(seconds, 1))
    if code != 0 or not told:
        return Result(name, FAILED, f"ended with {code}; its last words:\n{said[-_MAX_WORDS:]}", round(seconds, 1))
    found = json.loads(told[-1].removeprefix(MARK))
    words = str(found.get("words", ""))[-_MAX_WORDS:]
    return Result(name, found["status"], words, round(seconds, 1), found.get("numbers", {}))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
