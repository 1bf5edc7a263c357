"""First lines that hide their subject are found; texts in backticks are ignored."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[3] / "tools/check_words.py"


def check(folder: Path, first: str) -> subprocess.CompletedProcess[str]:
    file = folder / "one.py"
    file.write_text(f'def act():\n    """{first}"""\n')
    return subprocess.run([sys.executable, str(TOOL), str(file)], capture_output=True, text=True, check=False)


def test_a_first_line_that_hides_its_subject_is_reported_with_its_position(tmp_path: Path) -> None:
    done = check(tmp_path, "Return what those that left have told.")
    assert done.returncode == 1
    assert f"{tmp_path / 'one.py'}:1: 'what' in: Return what" in done.stdout


def test_a_first_line_that_names_its_subject_passes(tmp_path: Path) -> None:
    for first in ("Return the names of the ranks, or None if all have left.", "Return `what` of a row."):
        assert check(tmp_path, first).returncode == 0
