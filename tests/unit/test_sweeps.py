"""With a seed one value of a sweep runs, without a seed all values run."""

import subprocess
import sys
from pathlib import Path

import pytest

from sweeps import LONG_BUDGET_S, LONG_S, SEED, choose, choose_long

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


LONG = (
    """
import pytest

def test_that_does_not():
    print("ran short")

@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.long(SECONDS)
def test_of_two_sizes(size):
    print("ran size", size)

""".replace("SECONDS", str(LONG_BUDGET_S / 4))
    + "".join(
        f"@pytest.mark.long({LONG_BUDGET_S / 4})\ndef test_that_takes_long_{number}():\n    print('ran', {number})\n\n"
        for number in range(6)
    )
)


def run(folder: Path, seed: str, text: str = SWEPT) -> tuple[set[str], str]:
    (folder / "test_swept.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  sweep: x\n  long: x\n")
    command = [sys.executable, "-m", "pytest", "-p", "sweeps", "-p", "no:randomly", "-s", "-rs"]
    variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TESTS), "HOME": str(folder)} | (
        {SEED: seed} if seed else {}
    )
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.partition("ran ")[2] for line in done.stdout.splitlines() if "ran " in line}, done.stdout


@pytest.mark.timeout(120)
def test_a_seed_chooses_one_value_for_all_tests_that_share_the_sweep_and_reports_it(tmp_path: Path) -> None:
    ran, said = run(tmp_path, "7")
    swept = {words.rpartition(" ")[0] for words in ran if len(words.split()) == 3}
    assert len(swept) == 1
    assert len(ran) == 2 + 2
    assert "seed 7 chose" in said
    assert "make test-all runs all" in said
    assert run(tmp_path, "7")[0] == ran
    assert len(run(tmp_path, "")[0]) == 6 + 2


def test_every_value_is_chosen_by_some_seed_whatever_the_order() -> None:
    values = [(2,), (4,), (8,)]
    assert {choose(str(seed), "test_x", values) for seed in range(40)} == set(values)
    assert all(choose(str(s), "t", values) == choose(str(s), "t", values[::-1] + values) for s in range(40))


@pytest.mark.timeout(120)
def test_with_a_seed_some_long_tests_run_and_the_others_give_the_reason(tmp_path: Path) -> None:
    ran, said = run(tmp_path, "7", LONG)
    assert "short" in ran
    sized = {words for words in ran if words.startswith("size")}
    assert len(sized) in (0, 2)
    assert len(ran - sized) == 1 + 4 - (len(sized) // 2)
    assert "seed 7 chose other long tests" in said
    assert len(run(tmp_path, "", LONG)[0]) == 1 + 2 + 6


@pytest.mark.timeout(120)
def test_a_module_that_is_marked_as_long_runs_completely_or_not_at_all(tmp_path: Path) -> None:
    marked = f"import pytest\n\npytestmark = [pytest.mark.long({LONG_BUDGET_S})]\n\n"
    tests = "".join(f"def test_{number}():\n    print('ran', {number})\n\n" for number in range(3))
    (tmp_path / "test_other.py").write_text(marked + tests.replace("'ran'", "'ran other'"))
    for seed in ("1", "2", "3", "4", "5"):
        ran, _ = run(tmp_path, seed, marked + tests)
        assert ran in ({"0", "1", "2"}, {"other 0", "other 1", "other 2"})


def test_every_long_test_is_chosen_by_some_seed_whatever_the_order() -> None:
    seconds = {f"test_{number}": LONG_BUDGET_S / 3 for number in range(9)} | {"test_longest": 2 * LONG_BUDGET_S}
    chosen = [choose_long(str(seed), seconds) for seed in range(80)]
    assert set().union(*chosen) == set(seconds)
    assert choose_long("7", dict(reversed(seconds.items()))) == choose_long("7", seconds)


def test_long_tests_fill_the_budget_whatever_their_number() -> None:
    for number in (100, 1000):
        seconds = {f"test_{index}": LONG_S for index in range(number)}
        for seed in range(20):
            taken = LONG_S * len(choose_long(str(seed), seconds))
            assert LONG_BUDGET_S <= taken < LONG_BUDGET_S + LONG_S
    assert choose_long("7", {"test_only": 1.0}) == {"test_only"}
