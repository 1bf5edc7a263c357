"""Runs torch's own tests of torch.distributed against a backend and writes how each ended.

    PYTHONPATH=src .venvs/train/bin/python tools/run_upstream_torch_tests.py smddp --out smddp.json
    PYTHONPATH=src .venvs/train/bin/python tools/run_upstream_torch_tests.py gloo --out gloo.json
    python3 tools/run_upstream_torch_tests.py --page smddp.json gloo.json > docs/numbers/smddp-upstream-tests.md

The tests are those that the torch wheel carries (torch.testing._internal.distributed.distributed_test); nothing is
downloaded. Their decorators ask for a backend by name, so ours answers to the names of those that do on CPU what it
does, gloo and mpi. Ranks are forked, not spawned: the tests are the same, and torch is imported once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import time
import unittest
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_LIMIT_S = 60
_ENDS = ("passed", "failed", "skipped")


class _NameOfMany(str):
    """A backend's name that is equal to those of others too; in sets it is found as gloo."""

    __slots__ = ()
    EQUAL = ("smddp", "gloo", "mpi")

    def __eq__(self, other: object) -> bool:
        return any(str.__eq__(name, other) for name in self.EQUAL) if isinstance(other, str) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


class _Environment(dict[str, str]):
    """The environment, with a name of many where the tests look their backend up."""

    def __getitem__(self, key: str) -> str:
        value = super().__getitem__(key)
        return _NameOfMany(value) if key == "BACKEND" and value == "smddp" else value


class _Log(unittest.TestResult):
    """Keeps the end of every test by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, dict[str, Any]] = {}
        self._began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._began = time.monotonic()

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._keep(test, "passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._keep(test, "skipped", reason)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._keep(test, "failed", self._words(err))

    addFailure = addError

    def _keep(self, test: unittest.TestCase, end: str, why: str) -> None:
        name = test.id().rsplit(".", 1)[-1]
        self.ends[name] = {"end": end, "why": why, "seconds": round(time.monotonic() - self._began, 1)}
        print(f"{end:8s}{name}  {why[:150]}", file=sys.stderr, flush=True)

    @staticmethod
    def _words(error: Any) -> str:
        lines = [line.strip() for line in str(error[1]).splitlines() if line.strip()]
        raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Timeout|Lost|Mismatch|Closed)\b", line)]
        return (raised or lines or [repr(error[1])])[-1][:300]


def _load_tests(backend: str, size: int) -> Any:
    """Import the tests for a backend and return their class."""
    os.environ.update(
        BACKEND=backend,
        WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        TEMP_DIR=os.environ.get("TMPDIR", "/tmp"),
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(_LIMIT_S),
        OMP_NUM_THREADS="1",
    )
    import torch

    torch.set_num_threads(1)
    if backend == "smddp":
        from clary.train.collective.adapters.torch.registration import register

        register()
    from torch.testing._internal.common_distributed import DistTestCases

    DistTestCases.backend_feature["plugin"].add(backend)
    with _environment(_Environment(os.environ)):
        from torch.testing._internal.distributed import distributed_test as tests

    class TestUpstream(tests.TestDistBackend, tests.DistributedTest._DistTestBase):
        """torch's tests on forked ranks."""

        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    TestUpstream.__module__ = "__main__"
    return TestUpstream


@contextlib.contextmanager
def _environment(environment: Mapping[str, str]) -> Iterator[None]:
    kept = os.environ
    os.environ = environment  # type: ignore[assignment]  # noqa: B003 - a dict to read from, for a moment
    try:
        yield
    finally:
        os.environ = kept  # noqa: B003 - the very object, not a copy


def run(backend: str, size: int, pattern: str, out: Path) -> None:
    """Run the tests whose names match and write their ends."""
    tests = _load_tests(backend, size)
    log = _Log()
    names = [name for name in unittest.TestLoader().getTestCaseNames(tests) if re.search(pattern, name)]
    for number, name in enumerate(names):
        tests(name).run(log)
        if number % 10 == 0 or number == len(names) - 1:
            import torch

            told = {"backend": backend, "ranks": size, "torch": torch.__version__, "tests": log.ends}
            out.write_text(json.dumps(told, indent=1), encoding="utf-8")


def page(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Return the page that publishes the ends of two runs."""
    tests, others = ours["tests"], theirs["tests"]
    count = {
        side: {end: sum(t["end"] == end for t in run.values()) for end in _ENDS}
        for side, run in (("ours", tests), ("theirs", others))
    }
    lines = [
        "# torch's own tests on backend smddp",
        "",
        f"torch {ours['torch']}, {ours['ranks']} ranks on one host, CPU, compiled core. Written by",
        "`tools/run_upstream_torch_tests.py`; the tests are `torch.testing._internal.distributed.distributed_test`.",
        "",
        "| backend | passed | failed | skipped by torch |",
        "|---|---|---|---|",
        f"| smddp | {count['ours']['passed']} | {count['ours']['failed']} | {count['ours']['skipped']} |",
        f"| gloo, same runner | {count['theirs']['passed']} | {count['theirs']['failed']} | "
        f"{count['theirs']['skipped']} |",
        "",
        "Skips are torch's: for lack of GPUs, of eight ranks, or of another backend.",
        "",
        "What fails, and why it stays so: `monitored_barrier` of torch.distributed asks for gloo by name and refuses",
        "all others (the group's own `monitored_barrier` works); sparse tensors are refused by name; the test of a",
        "barrier's timeout looks for gloo's words in a message that has others.",
        "",
        "## Failed",
        "",
        "| test | on gloo | what it said |",
        "|---|---|---|",
    ]
    for name, test in sorted(tests.items()):
        if test["end"] == "failed":
            why = test["why"].replace("|", "/").replace("<", "(").replace(">", ")")
            lines.append(f"| {name} | {others.get(name, {'end': 'not run'})['end']} | {why} |")
    lines += ["", "## Passed", ""]
    lines += [f"- {name}" for name, test in sorted(tests.items()) if test["end"] == "passed"]
    return "\n".join(lines)


def main() -> None:
    """Run tests, or write the page of two runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", nargs="?", default="smddp")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--match", default="", help="regular expression that names must match")
    parser.add_argument("--out", type=Path, default=Path("upstream.json"))
    parser.add_argument("--page", nargs=2, type=Path, metavar=("OURS", "GLOO"))
    arguments = parser.parse_args()
    if arguments.page:
        print(page(*(json.loads(path.read_text(encoding="utf-8")) for path in arguments.page)))
        return
    run(arguments.backend, arguments.ranks, arguments.match, arguments.out)
    sys.stdout.flush()
    os._exit(0)  # torch's own threads may end a process that leaves otherwise with a signal


if __name__ == "__main__":
    main()
