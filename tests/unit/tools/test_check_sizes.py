"""Files and folders that exceed the limits of the house rules are reported."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[3] / "tools/check_sizes.py"


def check(folder: Path, *names: str, text: str = "") -> subprocess.CompletedProcess[str]:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return subprocess.run([sys.executable, str(TOOL)], cwd=folder, capture_output=True, text=True, check=False)


def test_the_limit_of_modules_in_a_folder_depends_on_its_part_of_the_tree(tmp_path: Path) -> None:
    for part, most in (("src/clary/agent", 25), ("benchmarks", 25), ("tests/unit/agent", 40)):
        folder = tmp_path / part.replace("/", "-")
        assert check(folder, *(f"{part}/m{number}.py" for number in range(most))).returncode == 0
        done = check(folder, f"{part}/one_more.py")
        assert done.returncode == 1
        assert f"{part}: {most + 1} files, at most {most}" in done.stdout


def test_verbs_of_the_command_line_are_not_counted(tmp_path: Path) -> None:
    assert check(tmp_path, *(f"src/clary/cli/m{number}.py" for number in range(60))).returncode == 0


def test_a_file_has_at_most_800_lines(tmp_path: Path) -> None:
    assert check(tmp_path, "src/clary/one.py", text="\n" * 800).returncode == 0
    done = check(tmp_path, "src/clary/two.py", text="\n" * 801)
    assert done.returncode == 1
    assert "src/clary/two.py: 801 lines, at most 800" in done.stdout
