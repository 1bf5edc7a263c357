"""Runs Horovod's own tests of TensorFlow and Keras against `horovod` of this tree, and writes how each ended.

    git clone --depth 1 --branch v0.28.1 https://github.com/horovod/horovod SOURCE   # outside of this tree
    PY=.venvs/tensorflow/bin/python   # with pytest, parameterized, mock, psutil and cloudpickle, in EXTRAS for example
    $PY tools/run_upstream_horovod_tensorflow_tests.py SOURCE test_tensorflow --extras EXTRAS --out a.json
    $PY tools/run_upstream_horovod_tensorflow_tests.py SOURCE test_tensorflow2_keras --legacy --out b.json
    python3 tools/run_upstream_horovod_tensorflow_tests.py --page a.json b.json > docs/numbers/horovod-tensorflow.md

Each test has a group of its own: it is formed before the test and left after it, so that a test that fails on one rank
takes no other with it. A test has passed if it has on every rank.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_ENDS = ("passed", "failed", "skipped")
_RANK = "CLARY_TEST_RANK"
_STALL_S = 20  # how long a rank waits for one that has failed
_LIMIT_S = 3000
_WHY = (
    "Tests run twice, eagerly and in a graph of TensorFlow 1. What fails, and why it stays so: tests named `..._error`",
    "want tf.errors.FailedPreconditionError where ranks pass different tensors. Eagerly it is one; in a graph",
    "TensorFlow makes an UnknownError, with the same words, of every error of a function in Python. `hvd.elastic.run`",
    "takes both. The tests of Keras are written for Keras 2: what fails with Keras 3 are names that it no longer has",
    "(`lr`, `optimizers.legacy`, `Variable.ref`, `_compute_gradients`); our own tests run with both.",
)


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
        if err[0].__name__ == "Skipped":  # by pytest
            self._keep(test, "skipped", str(err[1]))
            return
        lines = [line.strip() for line in str(err[1]).splitlines() if line.strip()]
        self._keep(test, "failed", f"{err[0].__name__}: {(lines or [''])[0]}"[:300])

    addFailure = addError

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addError(test, err)

    def _keep(self, test: unittest.TestCase, end: str, why: str) -> None:
        name = test.id().rpartition(".")[2].partition(" [")[0]  # without the mode, eager or of a graph
        if self.ends.get(name, {"end": ""})["end"] == "failed":
            return  # in the other mode
        self.ends[name] = {"end": end, "why": why, "seconds": round(time.monotonic() - self._began, 1)}
        print(f"{end:8s}{name}  {why[:150]}", file=sys.stderr, flush=True)


def be_rank(source: Path, module: str, match: str, out: Path) -> None:
    """Run the tests of a file on this rank and write their ends.

    Args:
        source: Horovod's repository.
        module: of `test/parallel`.
        match: part of the names of tests.
        out: file of the ends.
    """
    sys.path[:0] = [str(source / "test" / "parallel"), str(source / "test" / "utils")]
    hvd = importlib.import_module("horovod.tensorflow")
    _lend_module(source, "horovod.runner.util.threads")
    tests = importlib.import_module(module)
    tensorflow = importlib.import_module("tensorflow")
    log = _Log()
    found = [case for suite in unittest.defaultTestLoader.loadTestsFromModule(tests) for case in _cases_of(suite)]
    cases = [case for case in found if match in case.id() and not case.id().endswith(".test_session")]
    for number, case in enumerate(cases):
        hvd.init()
        case.run(log)
        hvd.shutdown()
        _await_others(out, number)  # a rank must not come to the store of the group before
        out.write_text(json.dumps({"tensorflow": tensorflow.__version__, "tests": log.ends}), encoding="utf-8")


def _lend_module(source: Path, name: str) -> None:
    """Import a module of Horovod that its tests' helpers ask for and ours does not have."""
    spec = importlib.util.spec_from_file_location(name, source / f"{name.replace('.', '/')}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _cases_of(suite: Any) -> Iterator[unittest.TestCase]:
    """Yield the tests of a suite and of those in it."""
    if isinstance(suite, unittest.TestCase):
        yield suite
    else:
        for one in suite:
            yield from _cases_of(one)


def _await_others(out: Path, number: int) -> None:
    """Wait until all ranks have left the group of a test."""
    size = int(os.environ["WORLD_SIZE"])
    (out.parent / f"left{number}-{os.environ[_RANK]}").touch()
    deadline = time.monotonic() + _LIMIT_S
    while not all((out.parent / f"left{number}-{rank}").exists() for rank in range(size)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"a rank has not left test {number} within {_LIMIT_S} s")
        time.sleep(0.01)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start the ranks, wait for them, and return the ends of all tests."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="clary-horovod-tests-"))
    print(f"logs: {folder}", flush=True)
    outs = [folder / f"ends.rank{rank}" for rank in range(options.ranks)]
    ranks = []
    for rank, out in enumerate(outs):
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": options.ranks, "LOCAL_WORLD_SIZE": options.ranks}
        names = {"HOROVOD_RANK": rank, "HOROVOD_SIZE": options.ranks, _RANK: rank, "MASTER_PORT": port}
        environment = {
            **os.environ,
            **{name: str(value) for name, value in {**numbers, **names}.items()},
            "MASTER_ADDR": "127.0.0.1",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(_STALL_S),
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_USE_LEGACY_KERAS": "1" if options.legacy else "0",
            "PYTHONPATH": ":".join([str(ROOT / "src/clary/compat"), str(ROOT / "src"), str(options.extras or "")]),
        }
        command = [sys.executable, __file__, str(options.source), options.module, "--match", options.match]
        with (folder / f"log{rank}").open("wb") as log:
            ranks.append(
                subprocess.Popen([*command, "--out", str(out)], env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    deadline = time.monotonic() + _LIMIT_S
    try:
        for process in ranks:
            process.wait(max(deadline - time.monotonic(), 1.0))
    finally:
        for process in ranks:
            process.kill()
    found = [json.loads(out.read_text(encoding="utf-8")) for out in outs]
    merged = {name: _worst([one["tests"].get(name) for one in found]) for name in found[0]["tests"]}
    return {
        "module": options.module,
        "keras": "legacy" if options.legacy else "3",
        "ranks": options.ranks,
        "tensorflow": found[0]["tensorflow"],
        "tests": merged,
    }


def _worst(ends: Sequence[Any]) -> Any:
    """Return the end of a test on the rank where it ended worst."""
    missing = {"end": "failed", "why": "a rank ended before it", "seconds": 0.0}
    order = ("failed", "skipped", "passed")
    return min((end or missing for end in ends), key=lambda end: order.index(end["end"]))


def page(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the page that publishes the ends of several runs."""
    lines = [
        "# Horovod's own tests of TensorFlow and Keras",
        "",
        f"Horovod 0.28.1's `test/parallel`, TensorFlow {runs[0]['tensorflow']} on a CPU, {runs[0]['ranks']} ranks on "
        "one host, compiled core.",
        "Written by `tools/run_upstream_horovod_tensorflow_tests.py`.",
        "",
        "| file | Keras | passed | failed | skipped |",
        "|---|---|---|---|---|",
    ]
    for one in runs:
        count = Counter(test["end"] for test in one["tests"].values())
        numbers = " | ".join(str(count[end]) for end in _ENDS)
        lines.append(f"| {one['module']} | {one['keras']} | {numbers} |")
    lines += ["", *_WHY, "", "## Failed", "", "| file | test | what it said |", "|---|---|---|"]
    lines += _rows(runs, "failed")
    lines += ["", "## Skipped", ""]
    for one in runs:
        reasons = Counter(test["why"] for test in one["tests"].values() if test["end"] == "skipped")
        lines += [f"- {one['module']}, Keras {one['keras']}: {number} x {why}" for why, number in reasons.most_common()]
    lines += ["", "## Passed", ""]
    for one in runs:
        names = sorted(name for name, test in one["tests"].items() if test["end"] == "passed")
        lines += [f"### {one['module']}, Keras {one['keras']}", "", *[f"- {name}" for name in names], ""]
    return "\n".join(lines).rstrip()


def _rows(runs: Sequence[Mapping[str, Any]], end: str) -> list[str]:
    return [
        f"| {one['module']} (Keras {one['keras']}) | {name} | {test['why'].replace('|', '/')} |"
        for one in runs
        for name, test in sorted(one["tests"].items())
        if test["end"] == end
    ]


def main() -> None:
    """Run tests, be one of their ranks, or write the page of several runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", type=Path, help="Horovod's repository at 0.28.1")
    parser.add_argument("module", nargs="?", default="test_tensorflow")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--match", default="", help="part of the names of tests; their ends replace those in OUT")
    parser.add_argument("--legacy", action="store_true", help="with legacy Keras")
    parser.add_argument("--extras", type=Path, help="folder with what the tests import")
    parser.add_argument("--out", type=Path, default=Path("horovod.json"))
    parser.add_argument("--page", nargs="+", type=Path, metavar="RUN")
    options = parser.parse_args()
    if options.page:
        print(page([json.loads(path.read_text(encoding="utf-8")) for path in options.page]))
    elif _RANK in os.environ:
        be_rank(options.source, options.module, options.match, options.out)
    else:
        told = run(options)
        if options.match and options.out.exists():  # some tests again: the ends of the others stay
            before = json.loads(options.out.read_text(encoding="utf-8"))
            told["tests"] = {**before["tests"], **told["tests"]}
        options.out.write_text(json.dumps(told, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
