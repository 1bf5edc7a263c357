"""`make test` runs failed tests a second time, alone: exactly the failed tests, for every name and group."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/run_tests.py"
pytestmark = pytest.mark.timeout(120)

TESTS = """
import pathlib
import pytest

def runs_of(name):
    record = pathlib.Path(__file__).with_name("runs")
    with record.open("a") as file:
        file.write(name + "\\n")
    return record.read_text().splitlines().count(name)

@pytest.mark.xdist_group("shared")
@pytest.mark.parametrize("value", ["plain", "a@b", "c]@d"])
def test_in_a_group(value):
    assert runs_of(value) > 1

def test_that_passes():
    runs_of("passes")

class TestClass:
    def test_method(self):
        assert runs_of("method") > 1

def test_that_may_never_pass():
    assert runs_of("never") > NEVER
"""

UNSTABLE = """
import os
import pytest

@pytest.mark.parametrize("value", [os.getpid()])
def test_that_every_worker_knows_by_another_name(value):
    pass
"""


def run(folder: Path, *, passes_after: int) -> tuple[int, str, list[str]]:
    (folder / "test_sample.py").write_text(f"NEVER = {passes_after}\n" + TESTS)
    command = [sys.executable, str(TOOL), "-n", "2", "--dist", "loadgroup"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    return result.returncode, result.stdout, sorted((folder / "runs").read_text().splitlines())


def test_failed_tests_run_again_alone_and_are_named(tmp_path: Path) -> None:
    code, output, runs = run(tmp_path, passes_after=0)
    assert code == 0, output
    assert runs == sorted(["plain", "a@b", "c]@d", "method"] * 2 + ["passes", "never"])
    assert [line for line in output.splitlines() if line.startswith("FAILED BESIDE OTHERS, passed alone")] == [
        f"FAILED BESIDE OTHERS, passed alone: test_sample.py::{name}"
        for name in (
            "TestClass::test_method",
            "test_in_a_group[a@b]",
            "test_in_a_group[c]@d]",
            "test_in_a_group[plain]",
        )
    ]


def test_a_test_that_fails_alone_too_fails_the_run(tmp_path: Path) -> None:
    code, output, runs = run(tmp_path, passes_after=2)
    assert code == 1
    assert runs.count("never") == 2
    assert "passed alone" not in output
    assert "slowest 10 durations" in output
    assert re.search(r"^tests took \d+\.\d min in all$", output, re.MULTILINE)


def test_workers_that_collect_different_tests_fail_the_run_without_a_repetition(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    (tmp_path / "test_unstable.py").write_text(UNSTABLE)
    code, output, runs = run(tmp_path, passes_after=0)
    assert code == 1
    assert "Different tests were collected" in output
    assert "once more, alone" not in output
    assert runs == []
