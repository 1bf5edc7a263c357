"""Run pytest over all tests, several at a time, and then each failed test once more, alone.

On two cores beside others a test may fail for what ran beside it. Such a failure is worth knowing and mending, but says
little about a change: it is run again in a process of its own with nothing beside it, and decides there. Its name is
printed last, so that nobody takes the run for a clean one. More than MOST_REPEATED failures are no accident and are
not tried again. Each run ends with its slowest tests and its total time.

Of each sweep one value runs, and of the long tests as many as fill a budget (tests/sweeps.py), by a printed seed;
CLARY_TEST_SEED names one. With --all everything runs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MOST_REPEATED = 5
NUM_SLOWEST = 10
SEED = "CLARY_TEST_SEED"
_TESTS_FAILED = 1  # pytest's own exit code


def main(arguments: list[str]) -> int:
    """Run pytest with `arguments`; return 0 if every test passed, at the latest when it ran alone."""
    started = time.monotonic()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it in what runs in the background; tests send it
    if "--all" in arguments:
        arguments = [one for one in arguments if one != "--all"]
        os.environ.pop(SEED, None)
    else:
        os.environ.setdefault(SEED, str(random.randrange(10_000)))
        print(
            f"a sample of sweeps and long tests runs, by {SEED}={os.environ[SEED]}; make test-all runs all", flush=True
        )
    try:
        return _run(arguments)
    finally:
        print(f"tests took {(time.monotonic() - started) / 60:.1f} min in all", flush=True)


def _run(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="clary-tests-") as cache:
        pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", f"--durations={NUM_SLOWEST}"]
        code = subprocess.run([*pytest, *arguments], check=False).returncode
        failed = _failed(Path(cache))
        if code != _TESTS_FAILED or not 0 < len(failed) <= MOST_REPEATED or not all(map(_is_test, failed)):
            return code
        print(f"\n{len(failed)} failed; once more, alone: {', '.join(failed)}\n", flush=True)
        code = subprocess.run([*pytest, "-n", "0", *failed], check=False).returncode
    if code == 0:
        for name in failed:
            print(f"FAILED BESIDE OTHERS, passed alone: {name}")
    return code


def _failed(cache: Path) -> list[str]:
    """Return the tests that the last run of pytest saw fail, each as pytest takes it on its command line."""
    record = cache / "v/cache/lastfailed"
    names = json.loads(record.read_text(encoding="utf-8")) if record.exists() else []
    return sorted(_without_group(name) for name in names)


def _is_test(name: str) -> bool:
    """Whether a name is one of tests; xdist also counts a worker (`gw0`) that found others than the first."""
    return Path(name.partition("::")[0]).exists()


def _without_group(name: str) -> str:
    """Return a name as pytest knows it: xdist writes the group behind it (`a.py::test@group`)."""
    path, _, test = name.partition("::")
    bare, at, group = test.rpartition("@")
    return f"{path}::{bare}" if at and "]" not in group else name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
