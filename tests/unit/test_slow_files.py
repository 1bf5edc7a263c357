"""The list of the slowest test files at the end of a run."""

import subprocess
import sys
from pathlib import Path

from slow_files import NUM_FILES, lines_of

TESTS = Path(__file__).parents[1]


def test_files_are_listed_slowest_first_with_their_share():
    lines = lines_of({"a.py": 30.0, "b.py": 90.0})
    assert [line.split() for line in lines] == [["90.0s", "75.0%", "b.py"], ["30.0s", "25.0%", "a.py"]]


def test_only_the_slowest_files_are_listed():
    assert len(lines_of({f"{number}.py": 10.0 + number for number in range(NUM_FILES * 2)})) == NUM_FILES


def test_a_short_run_lists_nothing():
    assert lines_of({"a.py": 5.0}) == []


def test_times_of_all_workers_count(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "import slow_files\nslow_files.LEAST_S = 0.0\npytest_plugins = ['slow_files']\n"
    )
    for name in ("test_one", "test_two"):
        (tmp_path / f"{name}.py").write_text("import time\ndef test_it():\n    time.sleep(0.2)\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", str(tmp_path)],
        env={"PYTHONPATH": str(TESTS), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "slowest 2 files" in done.stdout, done.stdout + done.stderr
    assert "test_one.py" in done.stdout
    assert "test_two.py" in done.stdout
