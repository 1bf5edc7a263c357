"""Long modules without a test, wrong lines of the table, and imports of test modules are reported."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools/check_tests.py"
LONG = "\n" * 151
MODULE = "src/clary/agent/one.py"


def check(folder: Path, files: dict[str, str], table: str = "") -> subprocess.CompletedProcess[str]:
    for name, text in {**files, "tests/tested_elsewhere.txt": table}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return subprocess.run([sys.executable, str(TOOL)], cwd=folder, capture_output=True, text=True, check=False)


def test_a_long_module_needs_a_test_of_its_name_or_a_line_in_the_table(tmp_path: Path) -> None:
    done = check(tmp_path, {MODULE: LONG})
    assert done.returncode == 1
    assert f"{MODULE}: more than 150 lines, and no test of its name" in done.stdout
    assert check(tmp_path, {}, f"{MODULE}: tests/unit/gone.py\n").returncode == 1
    assert check(tmp_path, {"tests/cluster/test_all.py": ""}, f"{MODULE}: tests/cluster/test_all.py\n").returncode == 0


def test_a_line_that_is_no_longer_needed_is_reported(tmp_path: Path) -> None:
    files = {MODULE: LONG, "tests/unit/agent/test_one.py": ""}
    assert check(tmp_path, files).returncode == 0
    done = check(tmp_path, files, f"{MODULE}: tests/unit/agent/test_one.py\n")
    assert done.returncode == 1
    assert "needs no line: it has a test of its name" in done.stdout


@pytest.mark.parametrize("words", ["import test_b", "from test_b import x", "from tests.unit import test_b"])
def test_an_imported_test_module_is_reported(tmp_path: Path, words: str) -> None:
    done = check(tmp_path, {"tests/unit/test_a.py": words, "tests/unit/test_b.py": "x = 1\n"})
    assert done.returncode == 1
    assert "tests/unit/test_a.py:1: imports the test module" in done.stdout
