"""Fail when the test of a module cannot be found by name, or when a test module imports another.

A module of `src` with more than 150 lines has a test `test_NAME.py` in the same folder below `tests/unit`, or a line in
`tests/tested_elsewhere.txt`: `MODULE: TEST TEST...`, each path from the root. Fixtures and helpers that several test
modules need lie in a module of their own, whose name does not begin with `test_`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

TABLE = Path("tests/tested_elsewhere.txt")
LONG = 150


def main() -> int:
    """Print long modules without a test, needless lines of the table, and imports of tests; return 1 for any."""
    listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.splitlines()
    paths = {path for path in map(Path, listed) if path.suffix == ".py" and path.exists()}
    told = [*_untested(paths, _read_table()), *_imported_tests(paths)]
    for line in told:
        print(line)
    return 1 if told else 0


def _read_table() -> dict[Path, list[Path]]:
    """Return the tests of each module that the table names."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    rows = [line.partition(":") for line in lines]
    return {Path(module): [Path(test) for test in tests.split()] for module, _, tests in rows}


def _untested(paths: set[Path], table: dict[Path, list[Path]]) -> list[str]:
    """Return a line for each long module whose test is not told, and for each line of the table that is not needed."""
    told = []
    for path in sorted(paths):
        if path.parts[:2] != ("src", "clary") or path.stem == "__init__":
            continue
        is_long = len(path.read_text(encoding="utf-8").splitlines()) > LONG
        has_own = Path("tests/unit", *path.parts[2:-1], f"test_{path.name}") in paths
        if is_long and not has_own and path not in table:
            told.append(f"{path}: more than {LONG} lines, and no test of its name: write one, or a line in {TABLE}")
        elif path in table and (has_own or not is_long):
            told.append(f"{TABLE}: {path} needs no line: {'it has a test of its name' if has_own else 'it is short'}")
    for module, tests in sorted(table.items()):
        gone = [path for path in (module, *tests) if path not in paths]
        if gone or not tests:
            told.append(f"{TABLE}: {module}: there is no {', '.join(map(str, gone)) or 'test behind it'}")
    return told


def _imported_tests(paths: set[Path]) -> list[str]:
    """Return a line for each import of a test module."""
    tests = {path.stem for path in paths if path.parts[0] == "tests" and path.name.startswith("test_")}
    told = []
    for path in sorted(path for path in paths if path.parts[0] == "tests"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(alias.name for alias in node.names)]
            else:
                continue
            told += [
                f"{path}:{node.lineno}: imports the test module {name}: move what both need into a module of its own"
                for name in names
                if name.rpartition(".")[2] in tests
            ]
    return told


if __name__ == "__main__":
    sys.exit(main())
