"""Of a sweep one value runs under a seed, and all without one."""

import subprocess
import sys
from pathlib import Path

import pytest

from sweeps import SEED, choose

TESTS = Path(__file__).parents[1]
SWEPT = """
import pytest

@pytest.mark.sweep("size", "backend")
@pytest.mark.parametrize(("size", "backend"), [(2, "a"), (4, "b"), (8, "a")])
@pytest.mark.parametrize("name", ["one", "two"])
def test_of_ranks(size, backend, name):
    print("ran", size, backend, name)

@pytest.mark.parametrize("size", [2, 4])
def test_without_a_mark(size):
    print("ran", size)
"""


def run(folder: Path, seed: str, *options: str) -> tuple[set[str], str]:
    (folder / "test_swept.py").write_text(SWEPT)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = sweep: x\n")
    command = [sys.executable, "-m", "pytest", "-p", "sweeps", "-p", "no:randomly", "-s", "-rs", *options]
    variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TESTS), "HOME": str(folder)} | (
        {SEED: seed} if seed else {}
    )
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.partition("ran ")[2] for line in done.stdout.splitlines() if "ran " in line}, done.stdout


@pytest.mark.timeout(120)
def test_a_seed_chooses_one_value_for_all_that_share_it_and_says_what_it_left_out(tmp_path: Path) -> None:
    ran, said = run(tmp_path, "7")
    swept = {words.rpartition(" ")[0] for words in ran if len(words.split()) == 3}
    assert len(swept) == 1
    assert len(ran) == 2 + 2
    assert "seed 7 chose" in said
    assert "make test-all runs all" in said
    assert run(tmp_path, "7")[0] == ran
    assert len(run(tmp_path, "")[0]) == 6 + 2


def test_every_value_is_chosen_by_some_seed_whatever_their_order() -> None:
    values = [(2,), (4,), (8,)]
    assert {choose(str(seed), "test_x", values) for seed in range(40)} == set(values)
    assert all(choose(str(s), "t", values) == choose(str(s), "t", values[::-1] + values) for s in range(40))
